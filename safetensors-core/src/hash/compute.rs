//! Digests of what lies in open files, read in pieces.

use std::ops::Range;

use sha2::Digest as _;

use super::{Digest, DigestOptions, Hasher, Sha256};
use crate::error::{ErrorKind, Result};
use crate::io::{ReadAt, SafeTensors};
use crate::load::LazyTensor;
use crate::parallel::{Meter, in_parallel};

/// The most bytes that a thread holds at once.
const PIECE: usize = 1 << 20;

/// The digest of each of these tensors, in the order given.
///
/// Several tensors are read at a time, each front to back in pieces of 1 MiB: no tensor is held in
/// memory.
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
///     [Digest::of(&[1, 2])]
/// );
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Io`], naming the tensor and the file, also if the file has changed since it was
/// opened; [`ErrorKind::Cancelled`]. The first failure stops all threads.
pub fn hash_tensors<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    options: &DigestOptions,
) -> Result<Vec<Digest>> {
    let progress = options.progress.for_total(tensors.iter().map(LazyTensor::byte_len).sum());
    in_parallel(tensors, options.threads, |tensor, buffer| {
        let digest = of_tensor(tensor, buffer, &progress)?;
        tensor.check_unchanged().map(|()| digest)
    })
}

/// The SHA-256 of all bytes after the header: what the model standard keeps as `hash_sha256`. Read
/// front to back in pieces of 1 MiB.
///
/// ```
/// use safetensors_core::digest::hash_file;
/// use safetensors_core::io::FileSource;
/// use safetensors_core::modelspec::ModelSpec;
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("w", TensorView::from_slice(&[3], b"abc")?)], &SaveOptions::new())?;
///
/// let file = SafeTensors::from_source(FileSource::open(&path)?)?;
/// let mut spec = ModelSpec::new("gpt-neo-x", "transformers", "My Model");
/// spec.hash_sha256 = Some(hash_file(&file)?);
/// assert!(
///     spec.to_metadata()?["modelspec.hash_sha256"]
///         .starts_with("0xba7816bf8f01cfea414140de5dae2223")
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Io`], also if the file has changed since it was opened.
pub fn hash_file<S: ReadAt>(file: &SafeTensors<S>) -> Result<Sha256> {
    let digest = of_data(file, &mut Vec::new(), &Meter::default())?;
    unchanged(file, digest)
}

/// A digest of a file that is still what it was when it was opened.
pub(crate) fn unchanged<S: ReadAt>(file: &SafeTensors<S>, digest: Sha256) -> Result<Sha256> {
    file.source().check_unchanged().map_err(ErrorKind::Io)?;
    Ok(digest)
}

/// The digest of one tensor, read through `buffer`.
pub(crate) fn of_tensor<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    buffer: &mut Vec<u8>,
    progress: &Meter,
) -> Result<Digest> {
    let mut hasher = Hasher::new();
    let begin = tensor.file_offset();
    let take = |piece: &[u8]| {
        hasher.update(piece);
        progress.add(piece.len() as u64, tensor.name())
    };
    let read = read_pieces(tensor.source(), begin..begin + tensor.byte_len(), buffer, take);
    read.map_err(|error| tensor.locate(error))?;
    Ok(hasher.finish())
}

/// The SHA-256 of all bytes after the header, read through `buffer`.
pub(crate) fn of_data<S: ReadAt>(
    file: &SafeTensors<S>,
    buffer: &mut Vec<u8>,
    progress: &Meter,
) -> Result<Sha256> {
    let mut hasher = sha2::Sha256::new();
    let begin = file.header().data_start();
    read_pieces(file.source(), begin..begin + file.header().data_len(), buffer, |piece| {
        hasher.update(piece);
        progress.add(piece.len() as u64, "")
    })?;
    Ok(Sha256::from_bytes(hasher.finalize().into()))
}

/// Gives the bytes of a range to `take`, piece by piece, through `buffer`.
pub(super) fn read_pieces<S: ReadAt>(
    source: &S,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let len = usize::try_from(range.end - offset).map_or(PIECE, |left| left.min(PIECE));
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let piece = &mut buffer[..len];
        source.read_exact_at(piece, offset).map_err(ErrorKind::Io)?;
        take(piece)?;
        offset += len as u64;
    }
    Ok(())
}
