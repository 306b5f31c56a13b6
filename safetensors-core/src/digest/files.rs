//! Computes digests of the files of a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hash::{DigestOptions, Sha256, of_data, unchanged};
use crate::io::ReadAt;

/// Computes the SHA-256 of all bytes after the header of each file of a checkpoint, in the order of
/// [`files`](Checkpoint::files). Several files are read at a time, each front to back in pieces of
/// 1 MiB.
///
/// # Errors
///
/// The errors of [`hash_tensors`](super::hash_tensors); each names the file.
pub fn hash_files<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    options: &DigestOptions,
) -> Result<Vec<Sha256>> {
    let files = checkpoint.files();
    let total = files.iter().map(|file| file.safetensors().header().data_len()).sum();
    let progress = options.work.meter(total);
    options.work.each(files, |file, buffer| {
        let digest = of_data(file.safetensors(), buffer, &progress)
            .and_then(|digest| unchanged(file.safetensors(), digest));
        digest.map_err(|error| error.in_path(file.path()))
    })
}
