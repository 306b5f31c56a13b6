//! Removal of what may be missing.

use std::io;

/// The result of a removal, which is no failure if there was nothing to remove.
pub(crate) fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
