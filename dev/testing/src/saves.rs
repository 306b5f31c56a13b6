//! The promises of a save of several files in every store, for every failure.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::store::{
    CopyFile, MemoryStore, Store, Versions, WritableDirectory,
};
use safetensors_core::checkpoint::{FilePattern, OtherFiles, save_sharded_to};
use safetensors_core::framework::in_parallel;
use safetensors_core::{
    Checkpoint, Error, ErrorKind, Limits, LoadOptions, ReadAt, Result, SaveOptions, ShardOptions,
    TensorBuf, TensorSource, serialize,
};

/// The tensors of a checkpoint by name.
type Content = BTreeMap<String, Vec<u8>>;

/// A directory of a store in a test.
pub trait Place {
    /// Saves tensors with some calls failing: through [`save_failing`].
    fn save(&mut self, version: u8, options: &ShardOptions, faults: &Faults) -> Result<()>;

    /// Opens the checkpoint of the directory, and reads it with [`read`].
    fn open(&self) -> Result<Content>;

    /// Returns the names of all files, sorted.
    fn names(&self) -> Vec<String>;

    /// Gives a file another name.
    fn rename(&mut self, from: &str, to: &str);
}

/// The name of a file next to the tensors.
const BESIDE: &str = "config.json";

/// Reads all tensors, and the file next to them.
pub fn read<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<Content> {
    let values = checkpoint.read_all(&LoadOptions::new().threads(1))?;
    let named = checkpoint.tensors().zip(values);
    let named = named.map(|(tensor, value)| (tensor.name().into(), value.bytes().to_vec()));
    let beside = checkpoint.read_beside(BESIDE, 1)?.map(|(_, bytes)| (BESIDE.into(), bytes));
    Ok(named.chain(beside).collect())
}

/// Makes 12 one-byte tensors. Most have the same names in each version, and all have other values.
fn tensors(version: u8) -> Content {
    let names = (0..11).map(|i| format!("tensor {i:02}")).chain([format!("version {version}")]);
    names.zip(version * 20..).map(|(name, value)| (name, vec![value])).collect()
}

/// Returns the tensors, and the file next to them.
fn content(version: u8) -> Content {
    tensors(version).into_iter().chain([(BESIDE.into(), vec![version])]).collect()
}

/// Saves a version of the tensors to a directory in which some calls fail.
pub fn save_failing<D: WritableDirectory>(
    directory: &mut D,
    version: u8,
    options: &ShardOptions,
    faults: &Faults,
) -> Result<()> {
    let tensors = tensors(version)
        .into_iter()
        .map(|(name, bytes)| (name, TensorBuf::from_vec(vec![1], bytes).unwrap()));
    let mut directory = Failing { directory, faults };
    // A file that is written, and one that is copied, go the same way.
    let options = match options.pattern() == &FilePattern::default() {
        true => options.clone().beside(BESIDE, [version]),
        false => options.clone().other_files(other_files(version)?),
    };
    save_sharded_to(&mut directory, tensors, &options).map(drop)
}

/// Returns the file next to the tensors, as from another model.
fn other_files(version: u8) -> Result<OtherFiles> {
    let none: [(&str, TensorBuf); 0] = [];
    let model = serialize(none, &SaveOptions::new())?;
    let files = [("in/model.safetensors", model), ("in/config.json", vec![version])];
    let model = Checkpoint::open_in(MemoryStore::from_iter(files), "in", &Limits::default())?;
    OtherFiles::new(&model, Path::new("elsewhere"))
}

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One call fails, and does nothing.
    Fails,
    /// The answer of a call is lost: it has done its work, and returns an error.
    IsLost,
    /// All calls fail from one on, as if the process had ended.
    Ends,
}

/// Which calls fail.
#[derive(Debug)]
pub struct Faults {
    /// The number of the first call that fails, and how.
    first: Option<(usize, Fault)>,
    calls: Cell<usize>,
    failed: RefCell<Option<&'static str>>,
}

impl Faults {
    /// No call fails.
    pub fn none() -> Self {
        Self { first: None, calls: Cell::new(0), failed: RefCell::new(None) }
    }

    fn at(number: usize, fault: Fault) -> Self {
        Self { first: Some((number, fault)), ..Self::none() }
    }

    /// Makes a call, or fails.
    fn call<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.calls.replace(self.calls.get() + 1);
        let Some((first, fault)) = self.first else { return call() };
        if number < first || (number > first && fault != Fault::Ends) {
            return call();
        }
        self.failed.borrow_mut().get_or_insert(name);
        if fault == Fault::IsLost {
            call()?;
        }
        Err(Error::from(ErrorKind::Io(io::Error::other(format!("{name} {number} fails")))))
    }
}

/// A directory in which some calls fail.
struct Failing<'d, D> {
    directory: &'d mut D,
    faults: &'d Faults,
}

impl<D: WritableDirectory> WritableDirectory for Failing<'_, D> {
    type Version = D::Version;
    type Store = D::Store;

    fn store(&self) -> &D::Store {
        self.directory.store()
    }

    fn path(&self) -> PathBuf {
        self.directory.path()
    }

    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()> {
        self.faults.call("write", || self.directory.write(name, tensors, options))
    }

    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        self.faults.call("write", || self.directory.write_other(name, copy))
    }

    fn begin(&mut self, pattern: &FilePattern, new: &[&str]) -> Result<Versions<D::Version>> {
        self.faults.call("begin", || self.directory.begin(pattern, new))
    }

    fn files(&self, pattern: &FilePattern) -> Result<Versions<D::Version>> {
        self.faults.call("files", || self.directory.files(pattern))
    }

    fn version_of(&self, name: &str) -> Result<Option<D::Version>> {
        self.faults.call("version", || self.directory.version_of(name))
    }

    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&D::Version>)],
    ) -> Result<Option<D::Version>> {
        self.faults.call("place", || self.directory.place(name, others))
    }

    fn take_back(&mut self, name: &str, version: &D::Version) -> Result<()> {
        self.faults.call("take back", || self.directory.take_back(name, version))
    }

    fn is_certain(&self) -> bool {
        self.directory.is_certain()
    }

    fn release(&mut self) {
        self.directory.release();
    }

    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()> {
        self.faults.call("duplicate", || self.directory.duplicate(names))
    }

    fn replace(
        &mut self,
        name: &str,
        bytes: Vec<u8>,
        before: Option<&D::Version>,
    ) -> Result<Option<D::Version>> {
        self.faults.call("replace", || self.directory.replace(name, bytes, before))
    }

    fn remove(&mut self, name: &str, version: &D::Version) -> Result<()> {
        self.faults.call("remove", || self.directory.remove(name, version))
    }

    fn sync(&mut self) -> Result<()> {
        self.faults.call("sync", || self.directory.sync())
    }

    fn finish(&mut self) -> Result<()> {
        self.faults.call("finish", || self.directory.finish())
    }
}

/// The content of a directory before a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// This many files of the pattern.
    Files(usize),
    /// One file of another name.
    Other,
    /// One file, which counts, and in addition two with an index.
    Both,
}

/// Saves to a directory while each of its calls fails in turn, over each kind of older checkpoint.
/// The directory always opens as the complete old or new checkpoint; the error says which; and the
/// next save leaves nothing behind.
pub fn a_save_that_fails_leaves_the_old_checkpoint_or_the_new_one<P: Place>(
    make: impl Fn() -> P + Sync,
) {
    let mut cases = Vec::new();
    for pattern in ["model{suffix}.safetensors", "weights{suffix}.fp16.safetensors"] {
        for before in [Before::Nothing, Before::Files(1), Before::Files(2), Before::Files(3)]
            .into_iter()
            .chain(
                [Before::Other, Before::Both].into_iter().filter(|_| pattern.starts_with("model")),
            )
        {
            for files in [1, 2, 3] {
                for fault in [Fault::Fails, Fault::IsLost, Fault::Ends] {
                    cases.push((Case { pattern: pattern.parse().unwrap(), before, files }, fault));
                }
            }
        }
    }
    let run = |(case, fault): (Case, Fault), _: &mut ()| Ok(case.run(&make, fault));
    // More threads than cores: in a bucket, the slowest place, calls wait for another thread.
    let failed: BTreeSet<_> = in_parallel(cases, 8, run).unwrap().into_iter().flatten().collect();
    let expected = [
        "begin",
        "duplicate",
        "files",
        "finish",
        "place",
        "remove",
        "replace",
        "sync",
        "version",
        "write",
    ];
    assert!(expected.iter().all(|call| failed.contains(call)), "{failed:?}");
}

struct Case {
    pattern: FilePattern,
    before: Before,
    /// The number of new files.
    files: usize,
}

impl Case {
    fn options(&self, files: usize) -> ShardOptions {
        ShardOptions::new()
            .file_pattern(self.pattern.clone())
            .max_shard_size((12_usize.div_ceil(files) as u64).into())
            .save_options(SaveOptions::new().durable(false))
    }

    fn prepare(&self, place: &mut impl Place) {
        let files = match self.before {
            Before::Nothing => return,
            Before::Files(files) => files,
            Before::Other | Before::Both => 1,
        };
        place.save(1, &self.options(files), &Faults::none()).unwrap();
        let single = self.pattern.file_name(0, 1);
        if matches!(self.before, Before::Other | Before::Both) {
            place.rename(&single, "other.safetensors");
        }
        if self.before == Before::Both {
            place.save(1, &self.options(2), &Faults::none()).unwrap();
            place.rename("other.safetensors", &single);
        }
        assert_eq!(place.open().unwrap(), content(1));
    }

    /// Returns the files after a save.
    fn names(&self) -> Vec<String> {
        let mut names: BTreeSet<_> =
            (0..self.files).map(|file| self.pattern.file_name(file, self.files)).collect();
        if self.files > 1 {
            names.insert(self.pattern.index_name());
        }
        if self.before == Before::Other {
            names.insert("other.safetensors".into());
        }
        names.insert(BESIDE.into());
        names.into_iter().collect()
    }

    /// Returns the names of the calls that failed, each in turn.
    fn run<P: Place>(&self, make: &impl Fn() -> P, fault: Fault) -> BTreeSet<&'static str> {
        let mut failed = BTreeSet::new();
        for number in 0.. {
            let mut place = make();
            self.prepare(&mut place);
            let names_before = place.names();
            let faults = Faults::at(number, fault);
            let saved = place.save(2, &self.options(self.files), &faults);
            let call = faults.failed.take();
            let context = format!(
                "{:?} -> {} files of {:?}, {fault:?} at {number}: {call:?}, {saved:?}",
                self.before, self.files, self.pattern
            );
            let is_new = match place.open() {
                Ok(found) if found == content(2) => true,
                Ok(mut found) => {
                    // The new file comes before the tensors, and goes back after a failure.
                    let may_be_new = fault != Fault::Fails || call != Some("place");
                    if may_be_new && found.get(BESIDE) == Some(&vec![2]) {
                        found.insert(BESIDE.into(), vec![1]);
                    }
                    assert_eq!(found, content(1), "{context}");
                    false
                }
                Err(error) => {
                    assert_eq!(self.before, Before::Nothing, "{context}: {error}");
                    let is_left = place.names().iter().any(|name| name == BESIDE);
                    assert!(
                        !is_left || fault != Fault::Fails || call != Some("place"),
                        "{context}"
                    );
                    false
                }
            };
            assert!(saved.is_err() || is_new, "{context}");
            if let (Err(error), true) = (&saved, fault == Fault::Fails) {
                let says_new =
                    matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_));
                assert!(says_new == is_new || self.before == Before::Other, "{context}");
                // A file that could not take its place with the others is taken back.
                let is_left = |name: &String| {
                    self.pattern.matches(name)
                        && self.names().contains(name)
                        && !names_before.contains(name)
                };
                let left = place.names().iter().any(is_left);
                assert!(!left || is_new || call != Some("place"), "{context}: {:?}", place.names());
            }
            place.save(2, &self.options(self.files), &Faults::none()).unwrap();
            assert_eq!(place.open().unwrap(), content(2), "{context}");
            assert_eq!(place.names(), self.names(), "{context}");
            match call {
                Some(call) => _ = failed.insert(call),
                None => {
                    saved.unwrap();
                    break;
                }
            }
        }
        failed
    }
}

/// Opens a directory of a store, and returns its tensors.
pub fn open_in<S: Store + 'static>(store: S, path: impl Into<PathBuf>) -> Result<Content> {
    read(&Checkpoint::open_in(store, path.into(), &Limits::default())?)
}
