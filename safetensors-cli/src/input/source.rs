//! The types of everything that is open: its bytes may come from anywhere.

use safetensors_core::{LazyTensor, ReadAt};

/// A file of the disk, or in a remote store.
pub(crate) type Source = Box<dyn ReadAt>;

pub(crate) type Checkpoint = safetensors_core::Checkpoint<Source>;

pub(crate) type Tensor<'a> = LazyTensor<'a, Source>;

pub(crate) type Rewrite<'a> = safetensors_core::Rewrite<'a, Source>;
