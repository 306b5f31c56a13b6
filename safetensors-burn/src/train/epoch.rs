//! [`Epoch`]: an epoch on the disk, and why it is not complete.

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

/// A file of an epoch, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpochFile {
    /// Its name, such as `model.safetensors`.
    pub name: String,
    /// Its length. For a delta, that of what differs.
    pub bytes: u64,
    /// The number of its tensors.
    pub tensors: usize,
    /// The epoch that it is a delta of; `None` if it is whole.
    pub base: Option<usize>,
}

impl Epoch {
    pub(super) fn new(number: usize, manifest: Result<Manifest>) -> Self {
        Self { number, manifest }
    }

    /// The number of the epoch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Why the epoch is not complete; `None` if all files are there, with the lengths and the
    /// headers that the manifest says.
    pub fn problem(&self) -> Option<&Error> {
        self.manifest.as_ref().err()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.manifest.is_ok()
    }

    /// Whether something is wrong with the content. An epoch of another version may be complete.
    pub(super) fn is_broken(&self) -> bool {
        self.problem().is_some_and(|error| is_of_content(error) && !is_of_version(error))
    }

    /// The epoch, or an error if its files could not be read (it may be complete).
    pub(super) fn readable(self) -> Result<Self> {
        match self.manifest {
            Err(error) if !is_of_content(&error) => Err(error),
            manifest => Ok(Self { manifest, ..self }),
        }
    }

    /// The files of a complete epoch, sorted by name.
    pub fn files(&self) -> impl Iterator<Item = EpochFile> {
        let files = self.manifest.iter().flat_map(|manifest| &manifest.files);
        files.map(|(name, file)| EpochFile {
            name: name.clone(),
            bytes: file.bytes(),
            tensors: file.tensors,
            base: file.delta.as_ref().map(|delta| delta.epoch),
        })
    }
}

/// Whether an error is about what an epoch has. Others may be gone the next time, such as that of
/// too many open files.
fn is_of_content(error: &Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, UnexpectedEof};

    let ErrorKind::Io(error) = error.kind() else { return true };
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory | UnexpectedEof)
}

fn is_of_version(error: &Error) -> bool {
    let ErrorKind::Framework { source, .. } = error.kind() else { return false };
    matches!(source.downcast_ref(), Some(EpochError::Version { .. }))
}
