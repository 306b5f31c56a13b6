//! What a user named as input: a path, or `-` for standard input.

use std::fs::File;
use std::io::{self, Seek};
use std::path::Path;

use anyhow::Context;
use safetensors_core::Checkpoint;

use crate::text;
use crate::usage::WrongUsage;

/// What standard input is called where a path would be shown.
const STDIN_NAME: &str = "standard input";

/// Whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// A path, or what else was named, to be shown.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { STDIN_NAME.into() } else { text::path(path) }
}

/// Opens a file, an index, or a directory that holds either; or, for `-`, what comes from standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    if !is_stdin(path) {
        return Ok(Checkpoint::open(path)?);
    }
    Ok(Checkpoint::of_file(stdin().context(STDIN_NAME)?, STDIN_NAME)?)
}

/// Refuses `-` where a file is changed.
pub(crate) fn refuse_stdin(path: &Path) -> anyhow::Result<()> {
    if is_stdin(path) {
        return Err(WrongUsage::error("standard input cannot be changed; name the file instead of -"));
    }
    Ok(())
}

/// A shard's path as its index has it.
pub(crate) fn shard_name(checkpoint: &Checkpoint, file: &Path) -> String {
    let folder = checkpoint.index().and_then(Path::parent);
    text::path(folder.and_then(|folder| file.strip_prefix(folder).ok()).unwrap_or(file))
}

/// Standard input as a file that can be read at positions.
fn stdin() -> io::Result<File> {
    // A file that was redirected can be read in place.
    let redirected = duplicate()?;
    if redirected.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(redirected);
    }
    // A pipe cannot. Its copy has no name, and is gone when it is closed.
    let mut copy = tempfile::tempfile()?;
    io::copy(&mut io::stdin().lock(), &mut copy)?;
    copy.rewind()?;
    Ok(copy)
}

#[cfg(unix)]
fn duplicate() -> io::Result<File> {
    use std::os::fd::AsFd;
    io::stdin().as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(windows)]
fn duplicate() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    io::stdin().as_handle().try_clone_to_owned().map(File::from)
}
