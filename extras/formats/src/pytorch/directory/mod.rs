//! Directories of PyTorch's trainers as one checkpoint: files hold pieces of tensors.

mod dcp;
mod deepspeed;
mod dtensor;
mod frozen;
mod item;
mod metadata;
mod ranks;
mod row;
mod settings;
mod states;

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors_core::checkpoint::NEWEST;
use safetensors_core::checkpoint::store::{FileKind, Store};
use safetensors_core::framework::in_parallel;

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Quoted, Result};
use crate::input::AnyStore;
use crate::input::{Cursor, Input};
use crate::tensor_file::{Builder, Directory, Region, Tensor, TensorFile, WholeTensor};
use crate::{Format, Options};

/// Threads mostly wait for the disk or the network.
const OPENED_AT_ONCE: usize = 8;

const BUFFER: usize = 256 << 10;

const LONGEST_NAME: u64 = 4096;

const MOST_NAMES: usize = 16;

/// Fields of an object of PyTorch, and dimensions of a tensor.
const MOST_FIELDS: usize = 64;

pub(crate) struct Folder<'a> {
    store: &'a AnyStore,
    path: PathBuf,
    files: Vec<String>,
    directories: Vec<String>,
    options: &'a Options,
    budget: Budget,
}

type File = (PathBuf, Arc<Input<'static>>);

impl<'a> Folder<'a> {
    /// Lists a directory, or the newest checkpoint that it names.
    pub(crate) fn find(store: &'a AnyStore, path: &Path, options: &'a Options) -> Result<Self> {
        let folder = Self::list(store, path.to_owned(), options)?;
        if folder.format().is_some() {
            return Ok(folder);
        }
        let Some(said) = NEWEST.iter().find(|name| folder.has(name)) else { return Ok(folder) };
        let (file, input) = folder.open(said)?;
        let mut text = Vec::new();
        folder.read(&input, |bytes| Ok(bytes.take(LONGEST_NAME).read_to_end(&mut text)?))?;
        let name = String::from_utf8_lossy(&text).trim().to_owned();
        // Megatron writes the number only.
        let name = match name.parse::<u64>() {
            Ok(number) if *said != NEWEST[0] => format!("iter_{number:07}"),
            _ => name,
        };
        if !is_plain(&name) {
            let found = Quoted(&name);
            let problem = format!("expected the name of a directory next to it, found {found}");
            return Err(bad(problem).in_path(&file));
        }
        if !folder.directories.contains(&name) {
            return Err(folder.missing(name));
        }
        Self::list(store, path.join(name), options)
    }

    fn list(store: &'a AnyStore, path: PathBuf, options: &'a Options) -> Result<Self> {
        let mut files = Vec::new();
        let mut directories = Vec::new();
        for entry in store.list(&path).map_err(|error| error.in_path(&path))? {
            match entry.kind {
                FileKind::File => files.push(entry.name),
                FileKind::Directory => directories.push(entry.name),
            }
        }
        if files.is_empty() && directories.is_empty() {
            // The store may be one that cannot list.
            let is_there =
                store.kind(&path.join(ranks::METADATA)).map_err(|it| it.in_path(&path))?;
            files.extend(is_there.map(|_| ranks::METADATA.to_owned()));
        }
        files.sort_unstable();
        let budget = Budget::new(&options.limits);
        Ok(Self { store, path, files, directories, options, budget })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn format(&self) -> Option<Format> {
        let format = Format::of_directory(self.files.iter().map(String::as_str));
        format.filter(|format| format.is_of_directories())
    }

    pub(crate) fn refuse_others(&self) -> Result<()> {
        dcp::check_megatron(self)?;
        let ranks = self.directories.iter().filter(|name| name.starts_with("mp_rank_")).count();
        if ranks < 2 {
            return Ok(());
        }
        let problem = format!(
            "each of {ranks} directories mp_rank_* has a part of the tensors, and no file says how \
             they are divided; save with Megatron's format torch_dist"
        );
        Err(self.wrong(ErrorKind::NotRead { problem }))
    }

    pub(crate) fn has_safetensors(&self) -> bool {
        self.files.iter().any(|name| name.ends_with(".safetensors"))
    }

    /// Or the first part of the only split GGUF file.
    pub(crate) fn only_file(&self) -> Option<PathBuf> {
        let known = self.files.iter().filter(|name| Format::from_name(name).is_some());
        let mut named = known.filter(|name| match name.rsplit_once("-of-") {
            _ if name.starts_with('.') => false,
            Some((start, end)) if end.ends_with(".gguf") => start.ends_with("-00001"),
            _ => true,
        });
        let only = named.next()?;
        named.next().is_none().then(|| self.path.join(only))
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file == name)
    }

    fn open(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let source = self.store.open(&path).map_err(|error| error.in_path(&path))?;
        self.budget.grow(source.byte_len());
        let input = Arc::new(Input::new(source.into(), &path));
        Ok((path, input))
    }

    fn open_listed(&self, name: &str) -> Result<File> {
        self.open(name).map_err(|error| match error.kind() {
            safetensors_core::ErrorKind::Io(io) if io.kind() == io::ErrorKind::NotFound => {
                self.missing(name)
            }
            _ => error,
        })
    }

    fn read<R>(
        &self,
        input: &Arc<Input<'static>>,
        read: impl FnOnce(&mut dyn Read) -> Result<R>,
    ) -> Result<R> {
        let cursor = Cursor { input: Arc::clone(input), at: 0 };
        let result = read(&mut BufReader::with_capacity(BUFFER, cursor));
        result.map_err(|error| error.in_file(&input.file))
    }

    fn open_all<N: AsRef<str> + Sync>(&self, names: &[N]) -> Result<Vec<File>> {
        in_parallel(names.iter(), OPENED_AT_ONCE, |name, _: &mut ()| self.open(name.as_ref()))
    }

    fn missing(&self, file: impl Into<String>) -> Error {
        self.wrong(ErrorKind::MissingFile { file: file.into() })
    }

    fn wrong(&self, kind: ErrorKind) -> Error {
        Error::from(kind).in_path(&self.path)
    }
}

pub(crate) fn open(folder: &mut Folder<'_>, format: Format) -> Result<TensorFile> {
    let examine = |folder: &Folder<'_>| match format {
        Format::Dcp => dcp::examine(folder),
        Format::DeepSpeed => deepspeed::examine(folder),
        Format::Dtensor => dtensor::examine(folder),
        other => Err(ErrorKind::NotEnabled { format: other }.into()),
    };
    let unused = folder.budget.again();
    let mut directory = examine(folder)?;
    if directory.files.iter().any(|(_, input)| input.source.may_change_unseen()) {
        let before = std::mem::take(&mut directory.tensors);
        drop(directory);
        folder.budget = unused;
        directory = examine(folder)?;
        if directory.tensors != before {
            let error = io::Error::other("the directory changed while it was opened");
            return Err(Error::from(error).in_path(&folder.path));
        }
    }
    let opened = TensorFile::of_directory(format, directory, &folder.budget);
    opened.map_err(|error| error.in_path(&folder.path))
}

fn left_out(names: &[&str], [one, several]: [&str; 2]) -> Option<String> {
    let quoted = |name: &&str| Quoted(name).to_string();
    let shown = names.iter().take(MOST_NAMES).map(quoted).collect::<Vec<_>>().join(", ");
    let more = match names.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = if names.len() == 1 { one } else { several };
    (!names.is_empty()).then(|| format!("skipped: {} {what}: {shown}{more}", names.len()))
}

fn number(digits: &str) -> Option<usize> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn bad(problem: impl Into<String>) -> Error {
    ErrorKind::BadDirectory { problem: problem.into() }.into()
}

/// Returns `true` if a name can be a directory's entry, on every system.
fn is_plain(name: &str) -> bool {
    !name.contains(['/', '\\', ':', '\0', '\n']) && !["", ".", ".."].contains(&name)
}

fn add(directory: &mut Directory, builder: Builder, file: usize) {
    directory.aliases.extend(builder.aliases);
    directory.metadata.extend(builder.metadata);
    directory.notes.extend(builder.notes);
    directory.tensors.extend(builder.tensors.into_iter().map(|it| in_one_piece(it, file)));
}

fn in_one_piece(tensor: Tensor, file: usize) -> WholeTensor {
    let Tensor { name, dtype, shape, data, stored } = tensor;
    let region = Region::whole(&shape);
    WholeTensor { name, dtype, shape, stored, pieces: vec![(file, region, data)] }
}
