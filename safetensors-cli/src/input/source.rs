//! The types of everything that is open: its bytes may come from anywhere.

use safetensors_core::{LazyTensor, ReadAt};

/// Where the bytes of an input come from: a file of the disk, or one in a remote store.
pub(crate) type Source = Box<dyn ReadAt>;

/// An open input.
pub(crate) type Checkpoint = safetensors_core::Checkpoint<Source>;

/// A tensor of an open input.
pub(crate) type Tensor<'a> = LazyTensor<'a, Source>;

/// An output that is made of open inputs.
pub(crate) type Rewrite<'a> = safetensors_core::Rewrite<'a, Source>;
