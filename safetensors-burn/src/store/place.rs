//! [`StorePlace`]: where a store loads from and saves to, on the disk or in memory.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry, Version};
use safetensors_core::io::{FileSource, ReadRange};
use safetensors_core::{Checkpoint, Error, Limits, ReadAt, Result};

use crate::{Burn, StoreError};

/// Stands for the path of a file in memory, in errors.
const IN_MEMORY: &str = "bytes in memory";

/// Where the checkpoint of a store lies.
#[derive(Clone, Debug)]
pub(crate) enum StorePlace {
    /// A file, an index or a directory.
    Path(PathBuf),
    /// The bytes of a file. `None` until a module is saved.
    Memory(Option<Bytes>),
}

impl StorePlace {
    /// Opens the checkpoint. Only headers are read.
    pub(crate) fn open(&self) -> Result<Checkpoint<Source>> {
        match self {
            Self::Path(path) => Checkpoint::open_in(Disk, path, &Limits::default()),
            Self::Memory(Some(bytes)) => {
                Checkpoint::from_source(Source::Memory(bytes.clone()), IN_MEMORY)
            }
            Self::Memory(None) => Err(self.locate(Error::framework::<Burn>(StoreError::NoBytes))),
        }
    }

    /// Adds the path to an error.
    pub(crate) fn locate(&self, error: Error) -> Error {
        match self {
            Self::Path(path) => error.in_path(path),
            Self::Memory(_) => error.in_path(IN_MEMORY),
        }
    }
}

/// The bytes of a file of either [`StorePlace`].
#[derive(Debug)]
pub(crate) enum Source {
    File(FileSource),
    Memory(Bytes),
}

impl ReadAt for Source {
    fn byte_len(&self) -> u64 {
        match self {
            Self::File(file) => file.byte_len(),
            Self::Memory(bytes) => bytes.byte_len(),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(buf, offset),
            Self::Memory(bytes) => bytes.read_exact_at(buf, offset),
        }
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_ranges_at(ranges),
            Self::Memory(bytes) => bytes.read_ranges_at(ranges),
        }
    }

    fn check_unchanged(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.check_unchanged(),
            Self::Memory(_) => Ok(()),
        }
    }

    fn may_change_unseen(&self) -> bool {
        match self {
            Self::File(file) => file.may_change_unseen(),
            Self::Memory(_) => false,
        }
    }

    fn is_replaced(&self) -> io::Result<bool> {
        match self {
            Self::File(file) => file.is_replaced(),
            Self::Memory(_) => Ok(false),
        }
    }
}

/// The local disk, whose files are opened as [`Source`]s.
struct Disk;

impl Store for Disk {
    type File = Source;

    fn open(&self, path: &Path) -> Result<Source> {
        LocalStore.open(path).map(Source::File)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        LocalStore.list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        LocalStore.version(path)
    }
}
