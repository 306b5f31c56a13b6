//! Files of other formats, and the small JSON of our own, that share, repeat, nest, refer back and
//! claim: each is made of a few choices and opened as users open it.
//!
//! A file is a list of [`Part`]s. `repeated` parts are written `count` times with `len` bytes each;
//! `shared` parts have `len` bytes once, and are referred to `count` times. `tests/bound.rs` measures
//! the memory and steps of reading them; the target [`run`] changes bytes of them, too.

mod burn;
mod gguf;
mod numpy;
mod open;
mod pickle;
mod plain;
mod pytorch;
mod trainers;
mod zipped;

use std::iter;

use safetensors_core::checkpoint::store::MemoryStore;

use crate::input::Input;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind, one of [`Format::repeated`] or [`Format::shared`].
    pub what: &'static str,
    /// How often it is written, or referred to.
    pub count: usize,
    /// The bytes of a name or value in it.
    pub len: usize,
}

impl Part {
    /// As many different names as the part has, each of its length or a little longer.
    fn names(self) -> impl Iterator<Item = String> {
        let tag = self.what.as_bytes()[0] as char;
        let text = self.text();
        (0..self.count).map(move |number| {
            let mut name = format!("{tag}{number:x}");
            name.push_str(text.get(name.len()..).unwrap_or_default());
            name
        })
    }

    /// Returns the part with shorter names, for names of files.
    fn at_most(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// A text of the part's length.
    fn text(self) -> String {
        "x".repeat(self.len)
    }
}

/// The files of a checkpoint by name, and the path that is opened.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Each name with its bytes.
    pub files: Vec<(String, Vec<u8>)>,
    /// The file or directory that is opened.
    pub path: &'static str,
}

impl Files {
    /// One file, which is opened.
    fn one(path: &'static str, bytes: Vec<u8>) -> Self {
        Self { files: vec![(path.into(), bytes)], path }
    }

    /// Adds a file.
    fn with(mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), bytes.into()));
        self
    }

    /// Returns the bytes of all files and of their names.
    pub fn len(&self) -> usize {
        self.files.iter().map(|(name, bytes)| name.len() + bytes.len()).sum()
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the files in memory.
    pub fn store(&self) -> MemoryStore {
        MemoryStore::from_iter(self.files.iter().map(|(name, bytes)| (name, bytes.clone())))
    }
}

/// A format, with the parts of its files.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// The parts that are written as often as they count, with `, ` between them.
    pub repeated: &'static str,
    /// The parts that are written once and referred to, with `, ` between them.
    pub shared: &'static str,
    /// The bytes of a repeated part in addition to its length.
    pub each: usize,
    /// Writes files of these parts.
    pub write: fn(&[Part]) -> Files,
    /// Opens the path in the store, lists its tensors, and reads small ones. Returns the error.
    pub open: fn(MemoryStore, &str) -> Result<(), String>,
}

/// The common values of most other formats.
const FOREIGN: Format = Format {
    name: "",
    repeated: "",
    shared: "",
    each: 8,
    write: |_| Files::default(),
    open: open::foreign,
};

/// All formats.
pub const FORMATS: &[Format] = &[
    plain::HEADER,
    plain::INDEX,
    plain::SETTINGS,
    plain::ADAPTER,
    plain::MANIFEST,
    numpy::NPY,
    numpy::NPZ,
    numpy::DEFLATED,
    pytorch::ARCHIVE,
    pytorch::DEFLATED,
    pytorch::LEGACY,
    pytorch::SCRIPT,
    pytorch::INDEX,
    trainers::DCP,
    trainers::DEEPSPEED,
    burn::RECORD,
    burn::PACK,
    gguf::GGUF,
];

const COUNTS: [usize; 12] = [0, 1, 2, 3, 5, 9, 30, 100, 300, 1000, 5000, 30_000];
const LENS: [usize; 11] = [0, 1, 2, 7, 8, 30, 64, 200, 1000, 10_000, 100_000];

impl Format {
    /// Returns the kinds of parts of a list.
    pub fn kinds(list: &'static str) -> impl Iterator<Item = &'static str> {
        list.split(", ")
    }

    /// Returns `true` if a part of this kind is written once.
    pub fn shares(&self, what: &str) -> bool {
        Self::kinds(self.shared).any(|kind| kind == what)
    }

    /// A few parts of some `most` bytes.
    pub fn random(&self, input: &mut Input<'_>, most: usize) -> Vec<Part> {
        let kinds: Vec<_> = Self::kinds(self.repeated).chain(Self::kinds(self.shared)).collect();
        let count = 1 + input.below(5);
        let parts = iter::repeat_with(|| {
            let what = input.one_of(&kinds);
            let (count, len) = (input.one_of(&COUNTS), input.one_of(&LENS).min(most));
            let each = if self.shares(what) { 8 } else { len + self.each };
            Part { what, count: count.min(most / each), len }
        });
        parts.take(count).collect()
    }
}

/// Checks one input: a format, its parts, and how bytes of the files change.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let format = input.one_of(FORMATS);
    let most = input.one_of(&[1 << 8, 1 << 12, 1 << 15]);
    let parts = format.random(&mut input, most);
    let mut files = (format.write)(&parts);
    for _ in 0..input.below(8) {
        let file = input.below(files.files.len().clamp(1, 256));
        let Some((_, bytes)) = files.files.get_mut(file) else { continue };
        let at = input.u64() as usize % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = input.byte();
        }
    }
    if let Err(error) = (format.open)(files.store(), files.path) {
        assert!(error.len() <= 1500, "{} bytes: {error:.200}", error.len());
    }
}
