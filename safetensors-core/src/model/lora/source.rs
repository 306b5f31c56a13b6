//! [`Source`]: the checkpoint of an adapter, and errors about its tensors.

use std::io;

use super::config::wrong;
use crate::checkpoint::{Checkpoint, failed};
use crate::file::io::ReadAt;
use crate::file::load::{LazyTensor, LoadOptions};
use crate::format::dtype::Dtype;
use crate::format::error::{AdapterProblem, Error, Result, Shape};

/// The checkpoint of an adapter, wherever its file is.
pub(super) type Source = Checkpoint<Box<dyn ReadAt>>;

/// Reads all elements of a tensor of an adapter.
pub(super) fn read_all(adapter: &Source, position: usize) -> io::Result<Vec<f32>> {
    let tensor = adapter.tensor_at(position).ok_or(io::ErrorKind::NotFound)?;
    let read = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32).threads(1));
    read.and_then(|buf| buf.into_vec()).map_err(failed)
}

/// Returns a tensor of floating-point numbers with at least this many dimensions, none of them 0.
pub(super) fn checked(
    source: &Source,
    position: usize,
    ndim: usize,
) -> Result<LazyTensor<'_, Box<dyn ReadAt>>> {
    let Some(tensor) = source.tensor_at(position) else {
        return Err(wrong("a tensor of the adapter is missing"));
    };
    if !tensor.dtype().is_float() || tensor.dtype().bits() < 8 {
        let problem = mismatch("floating-point numbers of whole bytes", tensor.dtype().to_string());
        return Err(located(&tensor, problem));
    }
    if tensor.shape().len() < ndim || tensor.shape().contains(&0) {
        let dims = if ndim == 1 { "dimension" } else { "dimensions" };
        return Err(misshapen(&tensor, format!("at least {ndim} {dims}, none of them 0")));
    }
    Ok(tensor)
}

pub(super) fn mismatch(expected: impl Into<String>, found: impl Into<String>) -> AdapterProblem {
    AdapterProblem::Mismatch { expected: expected.into(), found: found.into() }
}

/// Makes the error of a tensor with another shape than expected.
pub(super) fn misshapen<S>(tensor: &LazyTensor<'_, S>, expected: impl Into<String>) -> Error {
    located(tensor, mismatch(expected, format!("shape {}", Shape(tensor.shape()))))
}

/// Returns an error about a tensor of an adapter.
pub(super) fn located<S>(tensor: &LazyTensor<'_, S>, problem: impl Into<Error>) -> Error {
    tensor.locate(problem.into())
}

/// Returns an error about the tensor at a position of an adapter.
pub(super) fn at(source: &Source, position: usize, problem: impl Into<Error>) -> Error {
    match source.tensor_at(position) {
        Some(tensor) => located(&tensor, problem),
        None => problem.into(),
    }
}
