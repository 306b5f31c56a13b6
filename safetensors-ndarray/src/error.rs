//! Errors that ndarray brings: wrong numbers of dimensions, and shapes that it refuses.

use std::error::Error as StdError;
use std::fmt;

use ndarray::{Dimension, IxDyn, ShapeError};
use safetensors_core::Error;

use crate::Ndarray;

/// An array was asked for with another number of dimensions than the tensor has.
///
/// It is the source of an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongNdim {
    /// The number of dimensions that was asked for.
    pub expected: usize,
    /// The tensor's shape.
    pub found: Vec<usize>,
}

impl fmt::Display for WrongNdim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected {} dimensions, found {}: shape {:?}",
            self.expected,
            self.found.len(),
            self.found
        )
    }
}

impl StdError for WrongNdim {}

/// A shape as a dimension type of ndarray.
pub(crate) fn dimension<D: Dimension>(shape: &[usize]) -> Result<D, Error> {
    D::from_dimension(&IxDyn(shape)).ok_or_else(|| {
        // Only a dimension type of a fixed number of axes can fail to hold a shape.
        Error::framework::<Ndarray>(WrongNdim {
            expected: D::NDIM.unwrap_or_default(),
            found: shape.into(),
        })
    })
}

/// The error for a shape that ndarray refuses: for example one whose non-zero dimensions have a
/// product over `isize::MAX`.
pub(crate) fn shape_error(error: ShapeError) -> Error {
    Error::framework::<Ndarray>(error)
}
