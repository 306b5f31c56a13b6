//! Inputs of other formats, opened by `safetensors_formats` as checkpoints.
//!
//! Their content determines the format, after core has found no safetensors file.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::header::TensorInfo;
use safetensors_core::io::{FileSource, ReadRange};
use safetensors_core::{Dtype, Error, ErrorKind, LazyTensor, ReadAt};
use safetensors_formats::{Format, Options, Stored, TensorFile};

use super::kind::Judge;
use super::names::{explain, shown};
use super::source::{Checkpoint, Source};
use crate::terminal::text;

/// How a file of another format is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opening {
    /// Makes numbers of quantised tensors.
    pub(crate) dequantize: bool,
    /// Keeps the stored bytes of quantised tensors.
    pub(crate) blocks: bool,
    /// Reads a state without names.
    pub(crate) optimizer_state: bool,
    /// Gives a GGUF file the names of transformers.
    pub(crate) transformers: bool,
    pub(crate) judge: Judge,
}

/// A file of another format with advice in its errors.
struct Advised(TensorFile);

impl ReadAt for Advised {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset).map_err(advised)
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        self.0.read_ranges_at(ranges).map_err(advised)
    }

    fn inner(&self) -> Option<&dyn ReadAt> {
        Some(&self.0)
    }
}

/// Adds how to read a quantised tensor as numbers.
fn advised(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(safetensors_formats::ErrorKind::Quantised { .. }) => {
            let advice = "`safetensors convert IN OUT --dequantize f32` makes numbers of it";
            io::Error::new(error.kind(), format!("{error}; {advice}"))
        }
        _ => error,
    }
}

/// `error` remains if no other format is there.
pub(crate) fn open(
    store: Arc<dyn Store<File = Source>>,
    path: &Path,
    opening: Opening,
    error: Error,
) -> anyhow::Result<Checkpoint> {
    let options = Options::new().dequantize(opening.dequantize).blocks(opening.blocks);
    let options = options.optimizer_state(opening.optimizer_state);
    let is_directory = match error.kind() {
        // Several checkpoints, or a shard without its index, must not hide behind another file.
        ErrorKind::NoCheckpoint { found, .. } if !found.is_empty() => {
            return Err(explain(error));
        }
        ErrorKind::NoCheckpoint { .. } => true,
        _ => false,
    };
    let is_part = Format::from_name(path).is_some_and(Format::is_of_directories);
    if !is_directory && !is_index(path) && !is_part {
        let Ok(source) = store.open(path) else { return Err(explain(error)) };
        // A wrong header may come from an archive before or behind it.
        refuse_polyglot(&source, path)?;
        match Format::detect(&source) {
            Ok(Some(format)) => opening.judge.judge(path, Some(format))?,
            _ => return Err(explain(error)),
        }
    }
    let open =
        |options: &Options| safetensors_formats::open_files(Arc::clone(&store), path, options);
    let mut files = match open(&options) {
        Ok(files) => files,
        Err(other) if is_directory && is_unknown(&other, path) => return Err(explain(error)),
        Err(other) => return Err(other.into()),
    };
    // One file has been judged already.
    for (of_several, file) in files.iter().filter(|(file, _)| is_directory || file != path) {
        opening.judge.judge(of_several, Some(file.format()))?;
    }
    let format = files.first().map(|(_, file)| file.format());
    if opening.transformers && format == Some(Format::Gguf) {
        let stored = safetensors_formats::join(Arc::clone(&store), format, files)?;
        let named = options.transformers_names(stored.metadata()).and_then(|it| open(&it));
        files = named.map_err(|error| error.in_path(path))?;
    }
    let sources = files.into_iter().map(|(path, file)| (path, Advised(file)));
    let joined = safetensors_formats::join(store, format, sources)?;
    Ok(joined.of_directory(is_directory).into_boxed())
}

/// Returns `true` for an error of the directory itself, not of a file in it.
fn is_unknown(error: &Error, directory: &Path) -> bool {
    matches!(error.other(), Some(safetensors_formats::ErrorKind::UnknownFormat { .. }))
        && error.file() == Some(&*directory.display().to_string())
}

/// Fails if a file of no other format is an archive.
pub(crate) fn refuse_polyglot(source: &dyn ReadAt, path: &Path) -> anyhow::Result<()> {
    match safetensors_formats::check_polyglot(source) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.in_file(shown(path)).into()),
    }
}

/// Returns `true` for the name of an index of PyTorch's files, such as
/// `pytorch_model.bin.index.json`.
pub(crate) fn is_index(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".index.json");
    stem.is_some_and(|stem| [".bin", ".pt", ".pth"].iter().any(|end| stem.ends_with(end)))
}

/// Returns `true` if a name may be a part of a split GGUF file.
pub(crate) fn may_be_part(path: &Path) -> bool {
    Format::from_name(path) == Some(Format::Gguf)
        && path.file_name().is_some_and(|name| name.to_string_lossy().contains("-of-"))
}

/// Returns the format of the file, if it is another one.
pub(crate) fn detect(path: &Path) -> Option<Format> {
    let source = FileSource::open(path).ok()?;
    Format::detect(&source).ok().flatten()
}

/// Adds a remedy if the changed file has another format.
pub(crate) fn advise_change(error: Error, path: &Path) -> anyhow::Error {
    match detect(path) {
        // `error` is about the header of a safetensors file, which this file does not have.
        Some(format) => anyhow::anyhow!(
            "{}: only safetensors files can be changed, not a file of {format}; `safetensors \
             convert` makes one of it",
            text::path(path)
        ),
        None => error.into(),
    }
}

/// Returns the file of another format that a tensor comes from, even a computed one.
pub(crate) fn tensor_file(source: &Source) -> Option<&TensorFile> {
    source.as_any()?.downcast_ref()
}

pub(crate) fn file_len(source: &Source) -> u64 {
    tensor_file(source).map_or_else(|| source.byte_len(), TensorFile::file_len)
}

pub(crate) fn is_in(files: &[CheckpointFile<Source>]) -> bool {
    files.iter().any(|file| tensor_file(file.safetensors().source()).is_some())
}

/// A tensor as its header describes it, or as another format stores it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisplayedTensor<'a> {
    pub(crate) info: TensorInfo<'a>,
    /// How it is stored, if its dtype does not say it.
    pub(crate) stored: Option<&'a Stored>,
}

impl<'a> DisplayedTensor<'a> {
    pub(crate) fn new<S: 'static>(tensor: &LazyTensor<'a, S>) -> Self {
        let source: &'a S = tensor.source();
        let file = (source as &'a dyn Any).downcast_ref::<Source>().and_then(tensor_file);
        let stored = file.and_then(|file| file.stored(tensor.name()));
        Self { info: tensor.info(), stored }
    }

    pub(crate) fn kind(self) -> Kind<'a> {
        let stored = self.stored.map(|stored| stored.type_name.as_str());
        Kind { dtype: self.info.dtype(), stored }
    }

    pub(crate) fn shape(self) -> &'a [usize] {
        self.stored.map_or(self.info.shape(), |stored| &stored.shape)
    }

    pub(crate) fn byte_len(self) -> u64 {
        self.stored.map_or(self.info.byte_len(), |stored| stored.byte_len)
    }

    /// Returns `true` if its values cannot be read.
    pub(crate) fn is_unread(self) -> bool {
        self.stored.is_some_and(is_unread)
    }
}

/// Returns why a tensor cannot be read: its class or type is unknown.
pub(crate) fn why_unread(tensor: &LazyTensor<'_, Source>) -> Option<String> {
    if !DisplayedTensor::new(tensor).is_unread() {
        return None;
    }
    tensor.pieces().next()?.read().err().map(|error| error.to_string())
}

pub(crate) fn is_unread(stored: &Stored) -> bool {
    !stored.is_readable && !stored.is_quantised
}

pub(crate) fn elements(shape: &[usize]) -> u64 {
    // Before the zero of an empty tensor, the product may exceed 64 bits.
    shape.iter().fold(1, |all, &dim| all.saturating_mul(dim as u64))
}

/// A dtype, or the name of a type of another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind<'a> {
    dtype: Dtype,
    stored: Option<&'a str>,
}

impl<'a> Kind<'a> {
    /// Returns `None` for a type of another format.
    pub(crate) fn dtype(self) -> Option<Dtype> {
        self.stored.is_none().then_some(self.dtype)
    }

    pub(crate) fn name(self) -> &'a str {
        self.stored.unwrap_or(self.dtype.name())
    }

    /// An object that is not read has unknown dimensions.
    pub(crate) fn shape_text(self, shape: &[usize]) -> String {
        match (self.stored, shape) {
            (Some(_), [0]) => "unread".into(),
            _ => text::shape(shape),
        }
    }
}

impl serde::Serialize for Kind<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
