//! Digests of the files of a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hash::{DigestOptions, Sha256, of_data, unchanged};
use crate::io::ReadAt;

/// The SHA-256 of all bytes after the header of each file of a checkpoint, in the order of
/// [`shards`](Checkpoint::shards). Several files are read at a time, each front to back in pieces
/// of 1 MiB.
///
/// # Errors
///
/// As for [`tensors`], naming the file.
pub fn files<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    options: &DigestOptions,
) -> Result<Vec<Sha256>> {
    let files = checkpoint.shards();
    let total = files.iter().map(|file| file.archive().header().data_len()).sum();
    let progress = options.work.meter(total);
    options.work.each(files, |file, buffer| {
        let digest = of_data(file.archive(), buffer, &progress)
            .and_then(|digest| unchanged(file.archive(), digest));
        digest.map_err(|error| error.in_path(file.path()))
    })
}
