//! [`Spec`]: a tensor to be written.

use alloc::vec::Vec;

use crate::format::dtype::Dtype;
use crate::format::tensor::{Named, TensorSource};

/// A tensor's entry in the header, except for offsets.
#[derive(Clone, Copy)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
}

impl<'a> Spec<'a> {
    pub(crate) fn new(name: &'a str, source: &'a dyn TensorSource) -> Self {
        Self { name, dtype: source.dtype(), shape: source.shape() }
    }

    pub(crate) fn of_all(tensors: &[Named<'a>]) -> Vec<Self> {
        tensors.iter().map(|&(name, source)| Self::new(name, source)).collect()
    }
}
