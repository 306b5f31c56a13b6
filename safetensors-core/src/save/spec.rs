//! [`Spec`]: what is known of a tensor before its bytes are there.

use alloc::vec::Vec;

use crate::dtype::Dtype;
use crate::tensor::TensorSource;

/// A tensor that is to be written: all that the header says of it but its place.
#[derive(Clone, Copy)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
}

impl<'a> Spec<'a> {
    /// What a source says of itself.
    pub(crate) fn of(name: &'a str, source: &'a impl TensorSource) -> Self {
        Self { name, dtype: source.dtype(), shape: source.shape() }
    }

    /// What each of these sources says of itself.
    pub(crate) fn of_all<N: AsRef<str>, S: TensorSource>(tensors: &'a [(N, S)]) -> Vec<Self> {
        tensors.iter().map(|(name, source)| Self::of(name.as_ref(), source)).collect()
    }
}
