//! The types of everything that is open: its bytes may come from anywhere.

use std::path::Path;

use safetensors_core::checkpoint::store::{FileKind, Store, StoreEntry, Version};
use safetensors_core::{LazyTensor, ReadAt, Result};

/// Where the bytes of an input come from: a file of the disk, or one in a remote store.
pub(crate) type Source = Box<dyn ReadAt>;

/// An open input.
pub(crate) type Checkpoint = safetensors_core::Checkpoint<Source>;

/// A tensor of an open input.
pub(crate) type Tensor<'a> = LazyTensor<'a, Source>;

/// An output that is made of open inputs.
pub(crate) type Rewrite<'a> = safetensors_core::Rewrite<'a, Source>;

/// A store, of the disk or a remote one, with files of a single type.
pub(crate) struct Boxed<T>(pub(crate) T);

impl<T: Store<File: 'static>> Store for Boxed<T> {
    type File = Source;

    fn open(&self, path: &Path) -> Result<Source> {
        Ok(Box::new(self.0.open(path)?))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.0.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        self.0.list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        self.0.version(path)
    }
}
