//! Computes digests of tensors and files.

use std::io;
#[cfg(feature = "sha256")]
use std::ops::Range;

use super::{Digest, DigestOptions, Hasher, Sha256};
use crate::file::io::{ReadAt, SafeTensors};
use crate::file::load::LazyTensor;
use crate::file::load::streaming::read_pieces;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::Meter;

/// Computes the digest of each tensor, in the given order.
///
/// Several tensors are read at a time, each in pieces of 1 MiB.
///
/// ```
/// use safetensors_core::digest::{self, Digest, DigestOptions};
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
///
/// let file =
///     serialize([("w", TensorView::from_slice(&[2], &[1_u8, 2])?)], &SaveOptions::new())?;
/// let file = SafeTensors::from_source(file)?;
/// assert_eq!(
///     digest::hash_tensors(&[file.tensor("w")?], &DigestOptions::new())?,
///     [Digest::compute(&[1, 2])]
/// );
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// The first failure stops all threads: [`ErrorKind::Io`], also if a file has changed since it was
/// opened; [`ErrorKind::Cancelled`].
pub fn hash_tensors<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    options: &DigestOptions,
) -> Result<Vec<Digest>> {
    let progress = options.work.meter(tensors.iter().map(LazyTensor::byte_len).sum());
    options.work.each(tensors, |tensor, buffer| {
        let digest = of_tensor(tensor, buffer, &progress)?;
        tensor.check_unchanged().map(|()| digest)
    })
}

pub(crate) fn of_tensor<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    buffer: &mut Vec<u8>,
    progress: &Meter,
) -> Result<Digest> {
    let mut hasher = Hasher::default();
    let begin = tensor.file_offset();
    let mut take = |piece: &[u8]| {
        hasher.update(piece);
        progress.add(piece.len() as u64, tensor.name())
    };
    let range = begin..begin + tensor.byte_len();
    read_pieces(tensor.source(), range, buffer, &failed, &mut take)
        .map_err(|error| tensor.locate(error))?;
    Ok(hasher.finish())
}

/// Hashes all bytes after the header.
#[cfg(feature = "sha256")]
pub(crate) fn of_data<S: ReadAt>(
    file: &SafeTensors<S>,
    buffer: &mut Vec<u8>,
    progress: &Meter,
) -> Result<Sha256> {
    let begin = file.header().data_start();
    of_range(file.source(), begin..begin + file.header().data_len(), buffer, progress)
}

#[cfg(feature = "sha256")]
pub(crate) fn of_range<S: ReadAt>(
    source: &S,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    progress: &Meter,
) -> Result<Sha256> {
    use sha2::Digest as _;

    let mut hasher = sha2::Sha256::new();
    read_pieces(source, range, buffer, &failed, &mut |piece| {
        hasher.update(piece);
        progress.add(piece.len() as u64, "")
    })?;
    Ok(Sha256::from(<[u8; 32]>::from(hasher.finalize())))
}

/// Fails without the feature `sha256`, so that no hash counts as compared.
#[cfg(not(feature = "sha256"))]
pub(crate) fn of_data<S: ReadAt>(_: &SafeTensors<S>, _: &mut Vec<u8>, _: &Meter) -> Result<Sha256> {
    Err(ErrorKind::FeatureNeeded { feature: "sha256" }.into())
}

pub(super) fn failed(error: io::Error) -> Error {
    ErrorKind::Io(error).into()
}
