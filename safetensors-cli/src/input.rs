//! The input of a command: a path, an address, or `-` for standard input.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::{Error, ErrorKind, LazyTensor, ReadAt, edit};

use crate::kind::Judge;
use crate::report::wrong_usage;
use crate::{address, below, other, spool, text};

/// Where the bytes of an input come from: a file of the disk, or one in a remote store.
pub(crate) type Source = Box<dyn ReadAt>;

/// An open input.
pub(crate) type Checkpoint = safetensors_core::Checkpoint<Source>;

/// A tensor of an open input.
pub(crate) type Tensor<'a> = LazyTensor<'a, Source>;

/// An output that is made of open inputs.
pub(crate) type Rewrite<'a> = safetensors_core::Rewrite<'a, Source>;

/// The `PATH` argument of every command that reads one checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// A file, an index, a directory, an address (feature remote), or - for standard input
    ///
    /// An index is a file such as model.safetensors.index.json. A directory must hold
    /// model.safetensors, or else an index, or else exactly one .safetensors file. Files of
    /// PyTorch, GGUF and NumPy are read, too. An address is hf://owner/name, s3://bucket/model
    /// (gs, az), https://host/model.safetensors
    #[arg(value_name = "PATH", value_parser = address::parser())]
    path: PathBuf,
}

impl Input {
    /// Opens the checkpoint.
    pub(crate) fn open(&self) -> anyhow::Result<Checkpoint> {
        open(&self.path)
    }

    /// The name to show in messages.
    pub(crate) fn name(&self) -> String {
        name(&self.path)
    }

    /// The path, which may be `-`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The name of standard input where a path would be shown.
const STDIN_NAME: &str = "standard input";

/// Whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The name of an input to show in messages.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { STDIN_NAME.into() } else { shown(path) }
}

/// A path or an address to show in messages, without the secrets that an address can have.
pub(crate) fn shown(path: &Path) -> String {
    match address::of(path) {
        Some(address) => text::path(address::shown(address).as_ref()),
        None => text::path(path),
    }
}

/// Opens a file, an index, a directory that holds either, an address of one of these, or a pipe.
///
/// A pipe is standard input, named `-`, or a FIFO, such as a shell's `<(command)`.
pub(crate) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    open_with(path, Opening::default())
}

/// How a file of another format is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opening {
    /// Whether quantised tensors become numbers.
    pub(crate) dequantize: bool,
    /// Whether it may be of that format.
    pub(crate) judge: Judge,
}

/// [`open`] for files of other formats as `opening` says.
pub(crate) fn open_with(path: &Path, opening: Opening) -> anyhow::Result<Checkpoint> {
    if is_stdin(path) {
        return from_file(spool::standard_input().context(STDIN_NAME)?, STDIN_NAME.as_ref());
    }
    if let Some(address) = address::of(path) {
        return address::open(address);
    }
    if is_fifo(path) {
        let copy = File::open(path).map_err(anyhow::Error::from).and_then(spool::copy);
        return from_file(copy.with_context(|| name(path))?, path);
    }
    open_file(path, opening)
}

fn from_file(file: File, name: &Path) -> anyhow::Result<Checkpoint> {
    Ok(safetensors_core::Checkpoint::from_file(file, name)?.into_boxed())
}

/// Opens a path of the disk. Refuses a FIFO, because opening one that was found in a directory, and
/// not named by the user, could wait for ever.
pub(crate) fn open_file(path: &Path, opening: Opening) -> anyhow::Result<Checkpoint> {
    match safetensors_core::Checkpoint::open(path) {
        Ok(checkpoint) => Ok(checkpoint.into_boxed()),
        Err(error) => other::open(path, opening, error),
    }
}

/// Adds a remedy to an error about a file with a torn header, which an interrupted change left
/// half written. Says of a directory without a checkpoint how many there are one level down.
pub(crate) fn explain(error: Error) -> anyhow::Error {
    if let ErrorKind::NoCheckpoint { found, below } = error.kind()
        && found.is_empty()
        && !below.is_empty()
        && let Some(message) = error.file().map(Path::new).and_then(below::message)
    {
        return anyhow::anyhow!("{message}");
    }
    if !matches!(error.kind(), ErrorKind::TornHeader) {
        return error.into();
    }
    let can_be_restored = error.file().is_some_and(|file| edit::is_torn(file).unwrap_or(false));
    let advice = if can_be_restored {
        "the next change, such as `safetensors metadata set`, restores the header from before it"
    } else {
        "no backup of the header lies beside the file, so get the file anew"
    };
    anyhow::anyhow!("{error}; {advice}")
}

/// Whether a path leads to a FIFO.
fn is_fifo(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Refuses an output that is a file of the checkpoint that is read. It would be replaced by a file
/// of another kind.
pub(crate) fn refuse_as_output(checkpoint: &Checkpoint, output: &Path) -> anyhow::Result<()> {
    // An output that is not there yet has no such path.
    let Ok(there) = output.canonicalize() else { return Ok(()) };
    let mut files = checkpoint.files().iter().map(CheckpointFile::path).chain(checkpoint.index());
    match files.any(|file| file.canonicalize().is_ok_and(|file| file == there)) {
        true => Err(wrong_usage(format!(
            "{} is a file of the checkpoint that is read; choose another -o FILE",
            shown(output)
        ))),
        false => Ok(()),
    }
}

/// Refuses `-` for a command that changes a file.
pub(crate) fn refuse_stdin(path: &Path) -> anyhow::Result<()> {
    if is_stdin(path) {
        return Err(wrong_usage("standard input cannot be changed; name the file instead of -"));
    }
    Ok(())
}

/// A shard's path relative to its index.
pub(crate) fn shard_name(checkpoint: &Checkpoint, file: &Path) -> String {
    let folder = checkpoint.index().and_then(Path::parent);
    text::path(folder.and_then(|folder| file.strip_prefix(folder).ok()).unwrap_or(file))
}
