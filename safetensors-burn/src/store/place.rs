//! [`StorePlace`]: the disk, memory, or an open checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use safetensors_core::checkpoint::Computed;
use safetensors_core::framework::{into_view, prepare};
use safetensors_core::{Checkpoint, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result};

use crate::StoreError;

/// The path of bytes in memory, in errors.
const IN_MEMORY: &str = "bytes in memory";

pub(crate) type StoredTensor<'a> = LazyTensor<'a, Box<dyn ReadAt>>;

/// A checkpoint with quantised weights as numbers.
type Opened = Result<Checkpoint<Computed<Box<dyn ReadAt>>>>;

#[derive(Debug)]
pub(crate) enum StorePlace {
    /// A file, an index or a directory.
    Path(PathBuf),
    /// `None` until a module is saved.
    Memory(Option<Bytes>),
    /// Each load reads the same files.
    Open(Box<Opened>, PathBuf),
}

impl StorePlace {
    pub(crate) fn new<S: ReadAt + 'static>(checkpoint: Checkpoint<S>) -> Self {
        let first = checkpoint.files().first().map(|file| file.path());
        let path = checkpoint.index_path().or(first).unwrap_or(Path::new("")).to_owned();
        let as_stored = prepare(checkpoint.into_boxed(), &LoadOptions::new());
        Self::Open(Box::new(as_stored), path)
    }

    /// Reads only headers, and the description of quantised weights that are read as numbers.
    pub(crate) fn open(&self, options: &LoadOptions) -> Result<Checkpoint<Box<dyn ReadAt>>> {
        match self {
            Self::Path(path) => into_view(Checkpoint::open(path)?, options),
            Self::Memory(Some(bytes)) => {
                let checkpoint = Checkpoint::from_source(bytes.clone(), IN_MEMORY)?;
                into_view(checkpoint, options)
            }
            Self::Open(checkpoint, _) => match &**checkpoint {
                Ok(checkpoint) => into_view(checkpoint.clone(), options),
                Err(error) => {
                    let error = io::Error::other(error.to_string());
                    Err(self.locate(ErrorKind::Io(error).into()))
                }
            },
            Self::Memory(None) => Err(self.locate(StoreError::NoBytes.into())),
        }
    }

    pub(crate) fn locate(&self, error: Error) -> Error {
        match self {
            Self::Path(path) | Self::Open(_, path) => error.in_path(path),
            Self::Memory(_) => error.in_path(IN_MEMORY),
        }
    }
}
