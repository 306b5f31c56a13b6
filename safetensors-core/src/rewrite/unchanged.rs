//! Checks that what a rewrite has read is still there.

use std::path::Path;
use std::{fs, io};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::io::ReadAt;

/// Checks that what was read is still what it was read from.
pub(super) fn check_unchanged<S: ReadAt>(sources: &[&Checkpoint<S>]) -> Result<()> {
    sources.iter().try_for_each(|checkpoint| checkpoint.check_unchanged())
}

/// [`check_unchanged`] before a save to the file `path`, or into the directory `path`.
///
/// A file that was replaced can still be read, so that is no error for a save to another place. But
/// a save to the same place would undo what the other writer saved there.
pub(super) fn check_before_replacing<S: ReadAt>(
    sources: &[&Checkpoint<S>],
    path: &Path,
) -> Result<()> {
    check_unchanged(sources)?;
    // Nothing is there that could be undone.
    let Some(place) = canonical(path) else { return Ok(()) };
    for file in sources.iter().flat_map(|checkpoint| checkpoint.files()) {
        let directory = file.path().parent().unwrap_or(Path::new(""));
        let is_place = |path: &Path| canonical(path).as_ref() == Some(&place);
        if !is_place(file.path()) && !is_place(directory) {
            continue;
        }
        let is_replaced = file.safetensors().source().is_replaced();
        if is_replaced.map_err(|error| Error::io(error, file.path()))? {
            let error = io::Error::other("the file has been replaced since it was opened");
            return Err(Error::io(error, file.path()));
        }
    }
    Ok(())
}

/// The one path of a file or directory; `None` if there is none.
fn canonical(path: &Path) -> Option<std::path::PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    fs::canonicalize(path).ok()
}
