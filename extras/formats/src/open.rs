//! Opens a file of any format, recognised by its content.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::{Boxed, FileKind, LocalStore, Store};
use safetensors_core::framework::OtherFormat;
use safetensors_core::io::FileSource;
use safetensors_core::{self as core, Limits};
use safetensors_core::{Checkpoint, ReadAt};

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Format, STANDARD, is_exported, root_of};
use crate::input::{AnyStore, Input};
use crate::tensor_file::{Opened, Split, TensorFile};
use crate::zipped::Zipped;
use crate::{Options, npy, npz, polyglot};

const START: usize = 512;

/// Opens a file of any format as a checkpoint, a PyTorch index with its shards, a directory of
/// PyTorch's trainers, or a split GGUF file. Of safetensors it opens only a directory with parts of
/// tensors: core opens the others.
///
/// ```
/// use safetensors_core::TensorBuf;
/// use safetensors_formats::{Options, npz};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("weights.npz");
/// let mut writer = npz::Writer::new(std::fs::File::create(&path)?);
/// writer.add("embed", &TensorBuf::from_vec(vec![4], vec![1.0_f32, 2.0, 3.0, 4.0])?)?;
/// writer.finish()?;
///
/// let checkpoint = safetensors_formats::open(&path, &Options::new())?;
/// let part = checkpoint.tensor("embed")?.slice((1..3,))?.read()?;
/// assert_eq!(part.into_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Checkpoint<TensorFile>> {
    let files = open_files(LocalStore, path, options)?;
    let format = files.first().map(|(_, file)| file.format());
    join(LocalStore, format, files)
}

/// Makes one checkpoint of files of this format in this store.
#[doc(hidden)]
pub fn join<S: ReadAt>(
    store: impl Store + 'static,
    format: Option<Format>,
    files: impl IntoIterator<Item = (PathBuf, S)>,
) -> Result<Checkpoint<S>> {
    let is_directory = format.is_some_and(Format::is_of_directories);
    let checkpoint = Checkpoint::from_sources(files)?.in_store(store, is_directory);
    // The config.json next to a GGUF file may belong to the model that the file was made from.
    Ok(if format == Some(Format::Gguf) { checkpoint.without_codes() } else { checkpoint })
}

/// Opens the files at a path of a store, like [`open`], as (path, file) for
/// [`Checkpoint::from_sources`]: one file, the shards of a PyTorch index, the parts of a split GGUF
/// file, or a directory, which is one file.
///
/// With the feature `pytorch`, a directory opens as the first that it has: a trainer's checkpoint,
/// safetensors files with parts of tensors ([`Checkpoint::open`]), `pytorch_model.bin.index.json`,
/// `pytorch_model.bin`, the only file with the name of a supported format.
///
/// # Errors
///
/// - [`ErrorKind::UnknownFormat`] for another file or directory.
/// - [`ErrorKind::BadIndex`], [`NotInShard`](safetensors_core::ErrorKind::NotInShard).
/// - [`ErrorKind::BadSplit`] for the parts of a split GGUF file.
/// - [`ErrorKind::MissingFile`], [`ErrorKind::BadDirectory`] and [`ErrorKind::NotRead`] for a
///   trainer's checkpoint, and errors of core for parts that do not make up their tensors.
/// - Errors of the store, and of the format of a file.
pub fn open_files(
    store: impl Store<File: 'static> + 'static,
    path: impl AsRef<Path>,
    options: &Options,
) -> Result<Opened> {
    let store: AnyStore = Arc::new(Boxed(store));
    open_path(&store, path.as_ref(), options)
}

fn open_path(store: &AnyStore, path: &Path, options: &Options) -> Result<Opened> {
    #[cfg(feature = "pytorch")]
    {
        let is_index = path.extension().is_some_and(|end| end == "json");
        if is_index {
            return crate::pytorch::open_index(store, path, options, open_source);
        }
        if kind(store, path)? == Some(FileKind::Directory) {
            return open_directory(store, path, options);
        }
    }
    let budget = Budget::new(&options.limits);
    let open = |path: &Path| {
        let source = store.open(path).map_err(|error| error.in_path(path))?;
        budget.grow(source.byte_len());
        open_source(source, path, options, &budget)
    };
    let file = open(path)?;
    #[cfg(feature = "gguf")]
    if let Some(split) = file.split() {
        return crate::gguf::open_parts(file, split, path, open);
    }
    Ok(vec![(path.to_owned(), file)])
}

fn kind(store: &AnyStore, path: &Path) -> Result<Option<FileKind>> {
    store.kind(path).map_err(|error| error.in_path(path))
}

#[cfg(feature = "pytorch")]
fn open_directory(store: &AnyStore, path: &Path, options: &Options) -> Result<Opened> {
    let mut folder = crate::pytorch::Folder::find(store, path, options)?;
    if let Some(format) = folder.format() {
        let file = crate::pytorch::open_directory(&mut folder, format)?;
        return Ok(vec![(folder.path().to_owned(), file)]);
    }
    folder.refuse_others()?;
    let mut standard = None;
    for name in STANDARD.map(|name| path.join(name)) {
        if standard.is_none() && kind(store, &name)? == Some(FileKind::File) {
            standard = Some(name);
        }
    }
    let mut found_none = Error::from(ErrorKind::UnknownFormat { found: None }).in_path(path);
    // Of whole tensors in an index, no header is read in vain.
    if folder.has_safetensors()
        && (standard.is_none()
            || !matches!(CheckpointPath::find_in(store, path), Ok(CheckpointPath::Index(_))))
    {
        match Checkpoint::open_in(Arc::clone(store), path, &Limits::default()) {
            Ok(whole) => {
                if let Some(file) = TensorFile::of_parts(whole) {
                    return Ok(vec![(path.to_owned(), file)]);
                }
            }
            Err(error) if matches!(error.kind(), core::ErrorKind::NoCheckpoint { .. }) => {
                found_none = error;
            }
            // The tensors of the other file are valid, regardless of these files. But it must not
            // replace parts that are not complete.
            Err(error)
                if standard.is_some() && !matches!(error.kind(), core::ErrorKind::Ranks { .. }) => {
            }
            Err(error) => return Err(error),
        }
    }
    if standard.is_none() && !folder.has_safetensors() {
        standard = folder.only_file();
    }
    match standard {
        Some(standard) => open_path(store, &standard, options),
        None => Err(found_none),
    }
}

impl Format {
    /// Recognises the format of a file, by its first bytes, or of an archive, by the names of its
    /// members. `None` for safetensors and everything else. Features do not matter.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io); [`ErrorKind::TwoFormats`] for an archive that is
    /// another format, too.
    pub fn detect(source: &dyn ReadAt) -> Result<Option<Self>> {
        Ok(match Start::read(source)? {
            Start::Format(format) => Some(format),
            Start::Zip(kind) => {
                let input = Input::new(Arc::new(source), Path::new(""));
                match Zipped::open(input, &Options::new().limits) {
                    // The input has no name that the error could have.
                    Err(error) if matches!(error.other(), Some(ErrorKind::TwoFormats { .. })) => {
                        return Err(error.into_kind().into());
                    }
                    zipped => of_archive(&zipped, kind),
                }
            }
            Start::Other(_) => None,
        })
    }
}

impl TensorFile {
    /// Opens a file of another format, recognised by its content.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownFormat`](crate::ErrorKind::UnknownFormat) for other files, also
    /// safetensors; errors of the format; an error of the core for a file that is not a regular
    /// one.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        let source = FileSource::open(path).map_err(|error| error.in_path(path))?;
        Self::from_source(source, path, options)
    }

    /// Opens a file in memory, or anywhere else. Errors show `path`, which also names an unnamed
    /// tensor, as in `.npy`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownFormat`](crate::ErrorKind::UnknownFormat); errors of the format.
    pub fn from_source(
        source: impl ReadAt + 'static,
        path: impl AsRef<Path>,
        options: &Options,
    ) -> Result<Self> {
        Self::of_source(Box::new(source), path.as_ref(), options)
    }

    fn of_source(source: Box<dyn ReadAt>, path: &Path, options: &Options) -> Result<Self> {
        let budget = Budget::new(&options.limits);
        budget.grow(source.byte_len());
        let file = open_source(source, path, options, &budget)?;
        if let Some(Split { number, count, .. }) = file.split() {
            return Err(Error::from(ErrorKind::SplitGguf { number, count }).in_path(path));
        }
        Ok(file)
    }
}

enum Start {
    Format(Format),
    /// With the kind of its first member. All members decide the format.
    Zip(OtherFormat),
    Other(Option<OtherFormat>),
}

impl Start {
    fn read(source: &dyn ReadAt) -> std::io::Result<Self> {
        let mut start = [0; START];
        let len = source.byte_len().min(START as u64) as usize;
        let start = &mut start[..len];
        source.read_exact_at(start, 0)?;
        Ok(Self::detect(start))
    }

    /// No safetensors header begins so: its length would be over every limit, or the next byte not
    /// `{`.
    fn detect(start: &[u8]) -> Self {
        match OtherFormat::detect(start) {
            Some(OtherFormat::Gguf) => Self::Format(Format::Gguf),
            Some(OtherFormat::Npy) => Self::Format(Format::Npy),
            // A file of old versions of PyTorch.
            Some(OtherFormat::Pickle) => Self::Format(Format::Pytorch),
            Some(kind @ (OtherFormat::PytorchArchive | OtherFormat::Npz | OtherFormat::Zip)) => {
                Self::Zip(kind)
            }
            Some(OtherFormat::BurnRecord) => Self::Format(Format::Burn),
            Some(OtherFormat::Burnpack) => Self::Format(Format::Burnpack),
            None if start.get(8) == Some(&b'{') => {
                Self::Other(Some(OtherFormat::Named("a safetensors file under another name")))
            }
            other => Self::Other(other),
        }
    }
}

/// By the names of its members. If they cannot be listed, by the first: opening it gives the error.
fn of_archive(zipped: &Result<Zipped<'_>>, first: OtherFormat) -> Option<Format> {
    let Ok(names) = zipped.as_ref().map_err(|_| ()).and_then(|it| it.names().map_err(|_| ()))
    else {
        return Some(if first == OtherFormat::Npz { Format::Npz } else { Format::Pytorch });
    };
    if names.iter().any(|name| root_of(name).is_some() || is_exported(name)) {
        return Some(Format::Pytorch);
    }
    (names.is_empty() || names.iter().any(|name| name.ends_with(".npy"))).then_some(Format::Npz)
}

/// A file that may change unseen is opened twice: both must be equal.
fn open_source(
    source: Box<dyn ReadAt>,
    path: &Path,
    options: &Options,
    budget: &Budget,
) -> Result<TensorFile> {
    let source: Arc<dyn ReadAt> = source.into();
    let open = |budget: &Budget| {
        let file = open_any(Input::new(Arc::clone(&source), path), path, options, budget);
        file.map_err(|error| error.in_path(path))
    };
    let again = source.may_change_unseen().then(|| budget.again());
    let before = again.map(|again| open(&again)).transpose()?.map(TensorFile::into_layout);
    let file = open(budget)?;
    if before.is_some_and(|before| !file.has_layout(&before)) {
        let error = Error::from(std::io::Error::other("the file changed while it was opened"));
        return Err(error.in_path(path));
    }
    Ok(file)
}

/// Errors need not name the file yet.
fn open_any(
    input: Input<'static>,
    path: &Path,
    options: &Options,
    budget: &Budget,
) -> Result<TensorFile> {
    // One that has a single part looks like a whole file.
    if Format::from_name(path) == Some(Format::Dcp) {
        return Err(ErrorKind::PartOfDirectory.into());
    }
    let begins = Start::read(&*input.source)?;
    if matches!(begins, Start::Format(_)) {
        polyglot::check_polyglot(&*input.source)?;
    }
    match begins {
        Start::Format(Format::Npy) => npy::open_file(input, path, budget),
        #[cfg(feature = "gguf")]
        Start::Format(Format::Gguf) => crate::gguf::open(input, options, budget),
        #[cfg(feature = "burn")]
        Start::Format(format @ (Format::Burn | Format::Burnpack)) => {
            crate::burn::open(format, input, budget)
        }
        #[cfg(feature = "pytorch")]
        Start::Format(Format::Pytorch) => crate::pytorch::open_legacy(input, path, options, budget),
        Start::Zip(kind) => {
            let zipped = Zipped::open(input, &options.limits);
            let format = of_archive(&zipped, kind);
            let zipped = zipped?;
            match format {
                #[cfg(feature = "pytorch")]
                Some(Format::Pytorch) => {
                    crate::pytorch::open_archive(zipped, path, options, budget)
                }
                Some(Format::Npz) => npz::open_file(Arc::new(zipped), budget),
                Some(format) => Err(ErrorKind::NotEnabled { format }.into()),
                None => Err(ErrorKind::UnknownFormat { found: Some(kind) }.into()),
            }
        }
        Start::Format(format) => Err(ErrorKind::NotEnabled { format }.into()),
        Start::Other(found) => Err(ErrorKind::UnknownFormat { found }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_their_first_bytes() {
        for (start, format) in [
            (&b"GGUF\x03\0\0\0{\0\0\0\0\0\0\0"[..], Some(Format::Gguf)),
            (b"\x93NUMPY\x01\0", Some(Format::Npy)),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", Some(Format::Pytorch)),
            (b"\x80\x02}\0\0\0\0\0{\"a\":1}", None),
            (b"PK\x03\x04\0\0\0\0{", None),
            (b"", None),
            (b"\x80\x02", None),
            (b"GGU", None),
        ] {
            assert_eq!(Format::detect(&start).unwrap(), format, "{start:?}");
            (0..start.len()).for_each(|len| _ = Format::detect(&&start[..len]).unwrap());
        }
    }
}
