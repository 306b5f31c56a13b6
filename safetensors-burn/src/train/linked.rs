//! Files of epochs that are kept as the difference from the file of an older epoch.
//!
//! ```text
//! epoch-4/model.delta/model.safetensors.index.json       what differs: see `safetensors-delta`
//!                     model-00000-of-00001.safetensors
//!                     epoch-1/model.safetensors          the base: a hard link to that of epoch 1
//! ```
//!
//! The base is a complete file. Its hard link keeps it on the disk while a delta needs it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::digest::Digest;
use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::error::EpochError;

/// The name of a base, and of the complete file made from it.
pub(super) const FILE: &str = "model.safetensors";

pub(super) const PREFIX: &str = "epoch-";

/// Identifies a complete file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    /// Covers the digests of all tensors. For an index, of its text.
    pub(super) header_xxh3_128: String,
}

impl Stored {
    pub(super) fn describe(path: &Path) -> Result<Self> {
        let file = open(path)?;
        let bytes = file.metadata().map_err(|error| Error::io(error, path))?.len();
        let digest = Digest::of_header(file).map_err(|error| Error::io(error, path))?;
        Ok(Self { bytes, header_xxh3_128: digest.to_string() })
    }

    /// Checks the length and the header.
    pub(super) fn open(&self, path: &Path) -> Result<File> {
        self.try_open(path).map_err(|error| error.in_path(path))
    }

    fn try_open(&self, path: &Path) -> Result<File> {
        let mut file = open(path)?;
        let found = file.metadata().map_err(ErrorKind::Io)?.len();
        if found != self.bytes {
            return Err(EpochError::Length { expected: self.bytes, found }.into());
        }
        // Only the header: with the length of the file it shows an incomplete file at once, and
        // `verify` reads the rest.
        let found = Digest::of_header(&mut file).map_err(ErrorKind::Io)?.to_string();
        if found != self.header_xxh3_128 {
            let expected = self.header_xxh3_128.clone();
            return Err(EpochError::Header { expected, found }.into());
        }
        Ok(file)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeltaOf {
    /// The epoch of the base's file.
    pub(super) epoch: usize,
    /// The number of saves since the base, with this epoch.
    pub(super) saved_since: usize,
    pub(super) base: Stored,
    pub(super) files: BTreeMap<String, Stored>,
}

impl DeltaOf {
    /// Checks the delta of the file that was saved at `path`.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        let directory = directory_of(path);
        for (name, file) in &self.files {
            file.open(&directory.join(name))?;
        }
        let link = link_in(&directory, self.epoch);
        self.base.open(&link).map(drop).or_else(|error| self.base_error(&link, error))
    }

    fn base_error(&self, link: &Path, error: Error) -> Result<()> {
        let found = match error.kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound => None,
            // It may be there, and cannot be read now.
            ErrorKind::Io(_) => return Err(error),
            _ => Some(Stored::describe(link)?),
        };
        let shown = |file: &Stored| format!("{} bytes and {}", file.bytes, file.header_xxh3_128);
        let error = EpochError::Base {
            base: self.epoch,
            expected: shown(&self.base),
            found: found.as_ref().map(shown),
        };
        Err(Error::from(error).in_path(link))
    }
}

pub(super) fn directory_name(epoch: usize) -> String {
    format!("{PREFIX}{epoch}")
}

pub(super) fn directory_of(path: &Path) -> PathBuf {
    path.with_extension("delta")
}

pub(super) fn link_in(directory: &Path, base: usize) -> PathBuf {
    directory.join(directory_name(base)).join(FILE)
}

/// Compares all tensors with their digests. `path` is the file that was saved.
pub(super) fn verify(path: &Path, delta: &DeltaOf) -> Result<()> {
    delta.check(path)?;
    applying::verify(&directory_of(path))
}

/// Opens a regular file: opening a FIFO could wait for ever.
pub(super) fn open(path: &Path) -> Result<File> {
    Ok(FileSource::open(path)?.file().try_clone().map_err(ErrorKind::Io)?)
}

pub(super) use applying::apply;

#[cfg(feature = "delta")]
mod applying {
    use std::path::Path;

    use safetensors_core::digest::{self, DigestOptions};
    use safetensors_core::{Checkpoint, Error, Result};
    use safetensors_delta::{Options, open_linked};

    /// Makes `model.safetensors` in a new directory.
    pub(in crate::train) fn apply(delta: &Path, to: &Path) -> Result<()> {
        let (base, chain) = open_linked(delta)?;
        let applied = chain.apply(&base, to, &Options::new().durable(false));
        applied.map(drop).or_else(|error| blame(&base, error))
    }

    pub(super) fn verify(delta: &Path) -> Result<()> {
        let (base, chain) = open_linked(delta)?;
        chain.verify(&base, &Options::new()).or_else(|error| blame(&base, error))
    }

    /// Returns the error of the base, if the base is damaged.
    fn blame(base: &Checkpoint, error: Error) -> Result<()> {
        digest::verify(base, &DigestOptions::new().require_digests(true))?;
        Err(error)
    }
}

#[cfg(not(feature = "delta"))]
mod applying {
    use std::path::Path;

    use safetensors_core::Result;

    use crate::train::EpochError;

    pub(in crate::train) fn apply(_: &Path, _: &Path) -> Result<()> {
        Err(EpochError::Version { expected: 1, found: 2 }.into())
    }

    pub(super) fn verify(delta: &Path) -> Result<()> {
        apply(delta, delta)
    }
}
