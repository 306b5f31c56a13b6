//! The lock of a temporary file, which says that its process is alive.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::io::failpoint;
use crate::io::identity::Identity;

/// The result of trying to lock a file.
#[cfg_attr(not(unix), allow(dead_code, reason = "nothing is locked there"))]
pub(super) enum Lock {
    Taken,
    /// Somebody else holds the lock.
    Busy,
    /// The file system has no locks.
    None,
}

#[cfg(unix)]
pub(super) fn lock(file: &File) -> Lock {
    match file.try_lock() {
        Ok(()) => Lock::Taken,
        Err(fs::TryLockError::WouldBlock) => Lock::Busy,
        Err(fs::TryLockError::Error(_)) => Lock::None,
    }
}

#[cfg(not(unix))]
pub(super) fn lock(_: &File) -> Lock {
    Lock::None
}

/// Whether a path leads to this file.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    if failpoint::lacks("lasting numbers of files") {
        return Ok(false);
    }
    Ok(Some(Identity::of(&file.metadata()?)) == Identity::at(path)?)
}
