//! [`Epoch`]: an epoch on the disk, and why it is not complete.

use std::error::Error as _;
use std::io;

use safetensors_core::{Error, ErrorKind, Result};

use super::EpochError;
use super::manifest::Manifest;

/// An epoch on the disk.
#[derive(Debug)]
pub struct Epoch {
    number: usize,
    manifest: Result<Manifest>,
}

impl Epoch {
    pub(super) fn new(number: usize, manifest: Result<Manifest>) -> Self {
        Self { number, manifest }
    }

    /// Returns the number of the epoch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns why the epoch is not complete; `None` if all files have the lengths and headers of
    /// the manifest.
    pub fn problem(&self) -> Option<&Error> {
        self.manifest.as_ref().err()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.manifest.is_ok()
    }

    /// Returns `true` if the content is wrong. An epoch of another version may be complete.
    pub(super) fn is_broken(&self) -> bool {
        self.problem().is_some_and(|error| is_of_content(error) && !is_of_version(error))
    }

    /// Fails if the files could not be read: the epoch may be complete.
    pub(super) fn readable(self) -> Result<Self> {
        match self.manifest {
            Err(error) if !is_of_content(&error) => Err(error),
            manifest => Ok(Self { manifest, ..self }),
        }
    }
}

/// Returns `false` for errors that may be gone the next time, such as too many open files.
fn is_of_content(error: &Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, UnexpectedEof};

    let ErrorKind::Io(error) = error.kind() else { return true };
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | UnexpectedEof)
}

fn is_of_version(error: &Error) -> bool {
    let problem = error.source().and_then(|source| source.downcast_ref());
    matches!(problem, Some(EpochError::Version { .. }))
}
