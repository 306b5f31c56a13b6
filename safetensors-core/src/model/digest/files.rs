//! Computes digests of the files of a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::file::hash::{DigestOptions, Sha256, of_data, of_range};
use crate::file::io::ReadAt;
use crate::format::error::Result;

/// Computes the SHA-256 of all bytes after the header of each file, in the order of
/// [`files`](Checkpoint::files). The ModelSpec standard records it as `hash_sha256`.
///
/// ```
/// use safetensors_core::digest::{DigestOptions, hash_files};
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
///
/// let file = serialize([("w", TensorView::from_slice(&[3], b"abc")?)], &SaveOptions::new())?;
/// let file = Checkpoint::from_source(file, "bytes in memory")?;
/// let hash = hash_files(&file, &DigestOptions::new())?[0].to_string();
/// assert!(hash.starts_with("ba7816bf8f01cfea414140de5dae2223"));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`RankProblem::PartsOfTensors`](crate::error::RankProblem::PartsOfTensors) for joined parts of
/// ranks; [`Io`](crate::ErrorKind::Io), also if a file has changed since it was opened;
/// [`Cancelled`](crate::ErrorKind::Cancelled).
pub fn hash_files<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    options: &DigestOptions,
) -> Result<Vec<Sha256>> {
    let files = checkpoint.stored_files()?;
    let total = files.iter().map(|file| file.safetensors().header().data_len()).sum();
    let progress = options.work.meter(total);
    options.work.each(files, |file, buffer| {
        let archive = file.safetensors();
        let digest = of_data(archive, buffer, &progress).and_then(|digest| {
            archive.source().check_unchanged()?;
            Ok(digest)
        });
        digest.map_err(|error| error.in_path(file.path()))
    })
}

/// Computes the SHA-256 of all bytes of a source: of a file, as `sha256sum` prints and the Hub has
/// it.
///
/// ```
/// use safetensors_core::digest::{DigestOptions, hash_source};
///
/// let hash = hash_source(b"abc", &DigestOptions::new())?.to_string();
/// assert!(hash.starts_with("ba7816bf8f01cfea414140de5dae2223"));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) also if the source has changed;
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
pub fn hash_source<S: ReadAt>(source: &S, options: &DigestOptions) -> Result<Sha256> {
    let len = source.byte_len();
    let hash = of_range(source, 0..len, &mut Vec::new(), &options.work.meter(len))?;
    source.check_unchanged()?;
    Ok(hash)
}
