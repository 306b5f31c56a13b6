//! What a user named as input: a path, or `-` for standard input.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use safetensors_core::Checkpoint;

/// What stands for standard input where a path is expected.
pub(crate) const STDIN: &str = "-";

/// Opens a file, an index, or a directory that holds either; or, for `-`, the file that standard input is.
pub(crate) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    if path != Path::new(STDIN) {
        return Ok(Checkpoint::open(path).map_err(|error| error.in_file(path.display()))?);
    }
    // A file that was redirected can be read in place.
    let redirected = Path::new("/dev/stdin");
    if fs::metadata(redirected).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(Checkpoint::open(redirected)?);
    }
    // A pipe cannot be read at positions. Its copy loses its name at the end of this function and its bytes when it is closed.
    let mut copy = tempfile::Builder::new().prefix("stdin-").suffix(".safetensors").tempfile()?;
    io::copy(&mut io::stdin().lock(), copy.as_file_mut()).context("standard input")?;
    Ok(Checkpoint::open(copy.path())?)
}
