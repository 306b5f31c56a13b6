//! The lock of a temporary file, which says that its process is alive.
//!
//! On Windows a lock would keep readers from the finished file. There a file is in use for as long
//! as it is open.

use std::fs::File;
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
    use std::fs::TryLockError;

    match file.try_lock() {
        Ok(()) => Lock::Taken,
        Err(TryLockError::WouldBlock) => Lock::Busy,
        Err(TryLockError::Error(_)) => Lock::None,
    }
}

#[cfg(not(unix))]
pub(super) fn lock(_: &File) -> Lock {
    Lock::None
}

/// Opens a temporary directory, to be locked; `None` if the system cannot.
#[cfg(unix)]
pub(super) fn open_directory(path: &Path) -> io::Result<Option<File>> {
    File::open(path).map(Some)
}

/// Opens a temporary directory for as long as it is in use. That keeps [`open_leftover`] from it.
#[cfg(windows)]
pub(super) fn open_directory(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    let mut options = File::options();
    options.read(true).custom_flags(windows::FILE_FLAG_BACKUP_SEMANTICS);
    options.open(path).map(Some)
}

#[cfg(not(any(unix, windows)))]
pub(super) fn open_directory(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

/// Opens a temporary file or directory that nobody has open. Until it is closed, nobody can open it
/// but to rename or remove it.
#[cfg(windows)]
pub(super) fn open_leftover(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    use windows::{
        DELETE, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE,
    };

    let flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
    File::options().access_mode(DELETE).share_mode(FILE_SHARE_DELETE).custom_flags(flags).open(path)
}

/// Constants of `CreateFileW`.
#[cfg(windows)]
mod windows {
    pub(super) const DELETE: u32 = 0x0001_0000;
    pub(super) const FILE_SHARE_DELETE: u32 = 4;
    pub(super) const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
    pub(super) const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
}

/// Whether a path leads to this file.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    if failpoint::lacks("lasting numbers of files") {
        return Ok(false);
    }
    Ok(Some(Identity::of(file)?) == Identity::at(path)?)
}
