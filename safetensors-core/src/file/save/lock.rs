//! The lock of a temporary file: its process is alive.
//!
//! On Windows, where a lock would keep readers from the finished file, an open file is in use.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::file::io::failpoint;
use crate::file::io::identity::Identity;

#[cfg_attr(not(unix), allow(dead_code, reason = "nothing is locked there"))]
pub(super) enum Lock {
    Taken,
    Busy,
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

/// Returns `None` if a process is using it.
#[cfg(unix)]
pub(super) fn lock_leftover(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    // Links are not followed, and opening a FIFO does not wait.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let open = |write| File::options().read(true).write(write).custom_flags(flags).open(path);
    // Network file systems lock only a file that is open for writing.
    let file = open(true).or_else(|error| open(false).map_err(|_| error))?;
    let is_free = matches!(lock(&file), Lock::Taken) && is_at(&file, path)?;
    Ok(is_free.then_some(file))
}

/// Opens a file that nobody has open. Until it is closed, others can only rename or remove it.
#[cfg(windows)]
pub(super) fn lock_leftover(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    const DELETE: u32 = 0x0001_0000;
    const FILE_SHARE_DELETE: u32 = 4;
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
    let mut options = File::options();
    options.access_mode(DELETE).share_mode(FILE_SHARE_DELETE);
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path).map(Some)
}

// Leftovers cannot be distinguished from files in use.
#[cfg(not(any(unix, windows)))]
pub(super) fn lock_leftover(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    if failpoint::lacks("lasting numbers of files") {
        return Ok(false);
    }
    Ok(Some(Identity::read(file)?) == Identity::at(path)?)
}
