//! Deltas of checkpoints: a directory, an index, or an address.

use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::{Boxed, LocalStore};
use safetensors_core::{Error, ErrorKind, Limits};

use super::source::Source;
use super::{address, is_stdin};
use crate::terminal::report::wrong_usage;

pub(crate) type Delta = safetensors_delta::Delta<Source>;

pub(crate) fn open(path: &Path) -> anyhow::Result<Delta> {
    if is_stdin(path) {
        return Err(wrong_usage("a delta is a directory, which cannot be standard input"));
    }
    let Some(address) = address::in_path(path) else {
        return Ok(Delta::open_in(Boxed(LocalStore), path, &Limits::default())?);
    };
    let mut delta = None;
    let opened = address::open_or(address, |store, path, error| {
        if is_refused(&error) {
            delta = Some(Delta::open_in(Boxed(store), path, &Limits::default()));
        }
        Err(error.into())
    });
    match (delta, opened) {
        (Some(delta), _) => Ok(delta?),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(Error::from(ErrorKind::NotADelta).in_path(path).into()),
    }
}

/// Returns `true` if a checkpoint did not open because it is a delta, not a file in a delta.
pub(crate) fn is_delta(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &Error| {
        let named = error.file().and_then(CheckpointPath::from_name);
        is_refused(error) && !matches!(named, Some(CheckpointPath::File(_)))
    })
}

fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::IsDelta { .. })
}

/// Returns the files of a delta, also of a damaged one. Empty if the index cannot be read.
pub(crate) fn files(index: &Path) -> Vec<PathBuf> {
    if address::in_path(index).is_none() {
        return CheckpointPath::Index(index.into()).files_to_copy().unwrap_or_default();
    }
    let Ok(delta) = open(index) else { return Vec::new() };
    let mut files: Vec<_> = delta.tensors().filter_map(|tensor| tensor.file()).collect();
    files.dedup();
    files.into_iter().map(Path::to_owned).collect()
}
