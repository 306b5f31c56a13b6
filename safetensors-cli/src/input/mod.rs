//! The inputs of a command: a path, an address, or `-` for standard input.

pub(crate) mod address;
pub(crate) mod below;
pub(crate) mod delta;
pub(crate) mod discover;
pub(crate) mod find;
mod integer;
pub(crate) mod kind;
mod names;
pub(crate) mod other;
pub(crate) mod renames;
pub(crate) mod select;
pub(crate) mod slicing;
mod source;
pub(crate) mod spool;
pub(crate) mod targets;
pub(crate) mod threads;
pub(crate) mod unmatched;
pub(crate) mod values;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
pub(crate) use integer::integer;
use names::STDIN_NAME;
pub(crate) use names::{explain, is_stdin, name, refuse_stdin, shown};
pub(crate) use other::Opening;
use safetensors_core::checkpoint::store::{Boxed, LocalStore};
use safetensors_core::checkpoint::{self, CheckpointFile};
use safetensors_core::io::{FileSource, next_to};
use safetensors_core::quantized::QuantizedWeight;
pub(crate) use source::{Checkpoint, Rewrite, Source, Tensor};

use crate::terminal::report::warn;
use crate::terminal::text;

/// The `PATH` argument of every command that reads one checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// A file, index, directory or address (feature remote), or - for standard input
    ///
    /// `safetensors inspect --help` explains indexes, directories and addresses
    #[arg(value_name = "PATH", value_parser = address::parser())]
    path: PathBuf,
}

impl Input {
    pub(crate) fn open(&self) -> anyhow::Result<Checkpoint> {
        open(&self.path)
    }

    /// [`open`](Input::open) with `opening` for other formats.
    pub(crate) fn open_with(&self, opening: Opening) -> anyhow::Result<Checkpoint> {
        open_with(&self.path, opening)
    }

    pub(crate) fn name(&self) -> String {
        name(&self.path)
    }

    /// The path may be `-`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens a file, an index, a directory with either, an address, or a pipe: `-` or a FIFO, such as a
/// shell's `<(command)`.
pub(crate) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    open_with(path, Opening::default())
}

/// Warns if they cannot be recognised.
pub(crate) fn quantized_weights(checkpoint: &Checkpoint) -> Vec<QuantizedWeight> {
    checkpoint.quantized_weights().unwrap_or_else(|error| {
        warn(format!("{error}; the tensors are shown as stored"));
        Vec::new()
    })
}

/// [`open`] with `opening` for other formats.
pub(crate) fn open_with(path: &Path, opening: Opening) -> anyhow::Result<Checkpoint> {
    if is_stdin(path) {
        return from_file(spool::standard_input().context(STDIN_NAME)?, STDIN_NAME.as_ref());
    }
    if let Some(address) = address::in_path(path) {
        return address::open_or(address, |store, path, error| {
            other::open(Arc::new(Boxed(store)), path, opening, error)
        });
    }
    if is_fifo(path) {
        let copy = File::open(path).map_err(anyhow::Error::from).and_then(spool::copy);
        return from_file(copy.with_context(|| name(path))?, path);
    }
    open_file(path, opening)
}

fn from_file(file: File, name: &Path) -> anyhow::Result<Checkpoint> {
    let source = FileSource::from_file(file, name)?;
    Ok(safetensors_core::Checkpoint::from_source(source, name)?.into_boxed())
}

/// Refuses a FIFO.
// Opening one that was found and not named could wait for ever.
pub(crate) fn open_file(path: &Path, opening: Opening) -> anyhow::Result<Checkpoint> {
    match safetensors_core::Checkpoint::open(path) {
        Ok(checkpoint) => Ok(checkpoint.into_boxed()),
        Err(error) => other::open(Arc::new(Boxed(LocalStore)), path, opening, error),
    }
}

/// Returns the errors of all shards of an index, or nothing for another path.
pub(crate) fn faults(path: &Path) -> Vec<safetensors_core::Error> {
    match address::in_path(path) {
        Some(address) => address::store(address)
            .map(|(store, path)| checkpoint::faults(&store, &path))
            .unwrap_or_default(),
        None => checkpoint::faults(&LocalStore, path),
    }
}

/// Files with parts of tensors, each as a separate checkpoint.
pub(crate) fn parts(directory: &Path) -> anyhow::Result<Vec<Checkpoint>> {
    let parts = safetensors_core::Checkpoint::open(directory)?.into_parts()?;
    Ok(parts.into_iter().map(safetensors_core::Checkpoint::into_boxed).collect())
}

/// Returns `true` if files have parts of tensors. Then one represents all: by the path of their
/// index, or by a pattern.
pub(crate) fn is_in_parts(checkpoint: &Checkpoint) -> bool {
    checkpoint.stored_files().is_err()
}

/// The user has named it, so it may be a pipe, or `-`.
pub(crate) fn read_named(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if is_stdin(path) {
        std::io::stdin().take(most + 1).read_to_end(&mut bytes)
    } else if is_fifo(path) {
        File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    } else {
        return Ok(next_to::read_file(path, most)?);
    };
    read.with_context(|| name(path))?;
    anyhow::ensure!(bytes.len() as u64 <= most, "{}: over {most} bytes", name(path));
    Ok(bytes)
}

/// Returns `true` if the input can be read only once.
pub(crate) fn is_pipe(path: &Path) -> bool {
    is_stdin(path) || is_fifo(path)
}

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

pub(crate) fn opened_path<S>(checkpoint: &safetensors_core::Checkpoint<S>) -> String {
    path_of(checkpoint).map(text::path).unwrap_or_default()
}

/// The index, or the first file.
pub(crate) fn path_of<S>(checkpoint: &safetensors_core::Checkpoint<S>) -> Option<&Path> {
    let first = checkpoint.files().first().map(CheckpointFile::path);
    checkpoint.index_path().or(first)
}

/// Relative to the index.
pub(crate) fn shard_name(checkpoint: &Checkpoint, file: &Path) -> String {
    let folder = checkpoint.index_path().and_then(Path::parent);
    text::path(folder.and_then(|folder| file.strip_prefix(folder).ok()).unwrap_or(file))
}
