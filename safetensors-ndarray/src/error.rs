//! Errors of this adapter.

use ndarray::{Dimension, IxDyn, ShapeError};
use safetensors_core::Error;

/// ndarray's [`Framework`](safetensors_core::framework::Framework). Its tensors are
/// [`DynArray`](crate::DynArray)s. It holds every dtype exactly.
///
/// ```
/// use safetensors_core::framework::Framework;
/// use safetensors_core::{TensorBuf, Widening};
/// use safetensors_ndarray::Ndarray;
///
/// let buf = TensorBuf::from_vec(vec![2, 2], vec![1_u8, 2, 3, 4])?;
/// let array = Ndarray::from_buf(buf, &(), Widening::Refuse)?;
/// assert_eq!(array.shape(), [2, 2]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ndarray;

/// The tensor has another number of dimensions than expected.
///
/// It is the source of an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected {expected} dimension{}, found {}: shape {found:?}",
    if *.expected == 1 { "" } else { "s" },
    .found.len()
)]
pub struct WrongNdim {
    /// The expected number of dimensions.
    pub expected: usize,
    /// The tensor's shape.
    pub found: Vec<usize>,
}

/// Converts a shape. Fails if the number of dimensions differs.
pub(crate) fn dimension<D: Dimension>(shape: &[usize]) -> Result<D, Error> {
    D::from_dimension(&IxDyn(shape)).ok_or_else(|| {
        // Only a dimension type of a fixed number of axes can fail to hold a shape.
        wrong_ndim(D::NDIM.unwrap_or_default(), shape)
    })
}

pub(crate) fn wrong_ndim(expected: usize, shape: &[usize]) -> Error {
    Error::framework::<Ndarray>(WrongNdim { expected, found: shape.into() })
}

/// Wraps ndarray's error, for example for a product of dimensions over `isize::MAX`.
pub(crate) fn shape_error(error: ShapeError) -> Error {
    Error::framework::<Ndarray>(error)
}
