//! [`StorePlace`]: where a store loads from and saves to, on the disk or in memory.

use std::path::PathBuf;

use bytes::Bytes;
use safetensors_core::framework::prepare;
use safetensors_core::{Checkpoint, Error, LazyTensor, LoadOptions, ReadAt, Result};

use crate::{Burn, StoreError};

/// Stands for the path of a file in memory, in errors.
const IN_MEMORY: &str = "bytes in memory";

/// A tensor of the checkpoint of a store.
pub(crate) type StoredTensor<'a> = LazyTensor<'a, Box<dyn ReadAt>>;

/// Where the checkpoint of a store lies.
#[derive(Clone, Debug)]
pub(crate) enum StorePlace {
    /// A file, an index or a directory.
    Path(PathBuf),
    /// The bytes of a file. `None` until a module is saved.
    Memory(Option<Bytes>),
}

impl StorePlace {
    /// Opens the checkpoint. Only headers are read, and what describes quantised weights that are
    /// read as numbers.
    pub(crate) fn open(&self, options: &LoadOptions) -> Result<Checkpoint<Box<dyn ReadAt>>> {
        match self {
            Self::Path(path) => Ok(prepare(Checkpoint::open_whole(path)?, options)?.into_boxed()),
            Self::Memory(Some(bytes)) => {
                let checkpoint = Checkpoint::from_source(bytes.clone(), IN_MEMORY)?;
                Ok(prepare(checkpoint, options)?.into_boxed())
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
