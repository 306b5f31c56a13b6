//! [`DirectoryLock`]: one writer at a time changes a directory. [`GrowingLock`]: one grows a file.

use std::path::Path;
use std::time::Duration;
use std::{io, thread};

use super::failpoint;
use super::hidden::{LOCK_NAME as NAME, growing_lock};

/// In milliseconds.
const PAUSES: [u64; 4] = [1, 2, 4, 8];

/// The right to change the files of a directory, until this is dropped, against other processes and
/// threads. Readers ignore it.
// The holder locks a small hidden file, and removes it at the end. The system releases the lock of
// a killed process; the next writer removes the file. A lock of the directory would make a command
// under `flock DIRECTORY` wait for itself, and network file systems lock only files.
//
// Without locks in the file system this excludes no one, and on some network file systems only the
// same machine. So a holder that replaces several files checks at the end for changes by others.
//
// Against deadlocks, a writer locks a file of the directory first, and takes this lock before
// `Steps`, for which a process that is about to end waits.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _held: TakenLock,
}

impl DirectoryLock {
    pub(crate) fn wait_for(directory: &Path) -> io::Result<Self> {
        // `take` returns `None` only if it does not wait.
        let held = take(&directory.join(NAME), true)?.unwrap_or_default();
        Ok(Self { _held: held })
    }

    /// Returns `None` if somebody holds it for longer than [`clear`](Self::clear).
    pub(crate) fn try_for(directory: &Path) -> io::Result<Option<Self>> {
        Ok(patiently(&directory.join(NAME))?.map(|held| Self { _held: held }))
    }

    /// Removes the file of a killed writer, if possible.
    pub(crate) fn clear(directory: &Path) {
        let path = directory.join(NAME);
        if path.symlink_metadata().is_ok() {
            drop(take(&path, false));
        }
    }
}

/// The right to write a file step by step, by a hidden file, too. Saves at once ignore it.
#[derive(Debug)]
pub(crate) struct GrowingLock {
    _held: TakenLock,
}

impl GrowingLock {
    /// Returns `None` if somebody else holds it.
    pub(crate) fn try_for(path: &Path) -> io::Result<Option<Self>> {
        match patiently(&growing_lock(path)) {
            // Creating the file gives the better error.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(Some(Self { _held: None }))
            }
            taken => Ok(taken?.map(|held| Self { _held: held })),
        }
    }
}

/// `None` if the file system has no locks.
type TakenLock = Option<system::HeldLock>;

// Another writer may hold it for a moment, to remove a killed writer's files.
fn patiently(path: &Path) -> io::Result<Option<TakenLock>> {
    for pause in PAUSES {
        if let Some(held) = take(path, false)? {
            return Ok(Some(held));
        }
        thread::sleep(Duration::from_millis(pause));
    }
    take(path, false)
}

/// Returns `None` if somebody else holds it and `wait` is false.
fn take(path: &Path, wait: bool) -> io::Result<Option<TakenLock>> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, Unsupported};

    if failpoint::lacks("locks") {
        return Ok(Some(None));
    }
    match system::take(path, wait) {
        Ok(held) => Ok(held.map(Some)),
        // The file system has no locks.
        Err(error) if matches!(error.kind(), Unsupported | ReadOnlyFilesystem) => Ok(Some(None)),
        // The directory is not writable. Then the write that follows gives the better error. But a
        // lock file that exists and cannot be opened may be locked by another writer.
        Err(error) if error.kind() == PermissionDenied && path.symlink_metadata().is_err() => {
            Ok(Some(None))
        }
        Err(error) => {
            // The caller adds the path of the directory or of a file in it.
            let name = path.file_name().unwrap_or_default().display();
            let message = format!("cannot lock {name} in the directory: {error}");
            Err(io::Error::new(error.kind(), message))
        }
    }
}

#[cfg(unix)]
mod system {
    use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
    use std::path::Path;
    use std::time::Duration;
    use std::{io, thread};

    use crate::file::io::failpoint;
    use crate::file::io::hidden::directory;
    use crate::file::io::identity::Identity;
    use crate::file::io::unfinished::{Owned, Steps};

    // A locked file may no longer be at the path. Only a file system that gives a file another
    // number each time needs that many tries.
    const ATTEMPTS: u32 = 1000;

    // A millisecond apart: the creator of a file that cannot be opened may be about to set its
    // mode.
    const DENIED: u32 = 20;

    #[derive(Debug)]
    pub(super) struct HeldLock(Option<Owned>);

    impl HeldLock {
        // The last holder may have removed the file.
        fn new(file: File, path: &Path) -> io::Result<Option<Self>> {
            let lasting = !failpoint::lacks("lasting numbers of files");
            if !lasting || Identity::at(path)? != Some(Identity::read(&file)?) {
                return Ok(None);
            }
            Ok(Some(Self(Some(Owned::file(path).locked(file)))))
        }
    }

    impl Drop for HeldLock {
        fn drop(&mut self) {
            // The file is removed and forgotten while it is locked. Afterwards the name may belong
            // to another writer's lock.
            let _steps = Steps::begin();
            self.0 = None;
        }
    }

    /// Returns `None` if somebody else has locked it and `wait` is false.
    pub(super) fn take(path: &Path, wait: bool) -> io::Result<Option<HeldLock>> {
        let mut attempts = 0;
        let mut denied = 0;
        while attempts < ATTEMPTS {
            attempts += 1;
            // The created file is registered in the same steps. So nothing here may wait.
            let steps = Steps::begin();
            let (file, is_new) = match open(path) {
                Err(error)
                    if error.kind() == io::ErrorKind::PermissionDenied
                        && denied < DENIED
                        && path.symlink_metadata().is_ok() =>
                {
                    drop(steps);
                    denied += 1;
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                opened => opened?,
            };
            match try_lock(&file) {
                Ok(()) => match HeldLock::new(file, path)? {
                    Some(held) => return Ok(Some(held)),
                    None => continue,
                },
                Err(TryLockError::WouldBlock) if !wait => return Ok(None),
                Err(TryLockError::WouldBlock) => {}
                // Any other error means that the file system has no locks.
                Err(TryLockError::Error(_)) => {
                    if is_new {
                        let _ = fs::remove_file(path);
                    }
                    return Err(io::ErrorKind::Unsupported.into());
                }
            }
            drop(steps);
            lock(&file)?;
            attempts = 0;
            let _steps = Steps::begin();
            if let Some(held) = HeldLock::new(file, path)? {
                return Ok(Some(held));
            }
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns whether this created it.
    fn open(path: &Path) -> io::Result<(File, bool)> {
        // A link is not followed, and opening a FIFO does not wait.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let open = |write, create| {
            let mut options = OpenOptions::new();
            options.read(true).write(write).create_new(create).mode(0o644);
            options.custom_flags(flags.bits() as i32);
            if failpoint::lacks("access to the lock file") {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            options.open(path)
        };
        for _ in 0..ATTEMPTS {
            match open(true, true) {
                Ok(file) => {
                    let _ = let_writers_lock(&file, path);
                    return Ok((file, true));
                }
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => {}
            }
            // A file that is read-only can be locked nevertheless.
            match open(true, false).or_else(|error| open(false, false).map_err(|_| error)) {
                // It was removed in between.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return Ok((opened?, false)),
            }
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets everybody who may change the directory lock the file, despite the umask.
    // Some network file systems lock only writable files, so it is writable for those to whom the
    // directory is.
    fn let_writers_lock(file: &File, path: &Path) -> io::Result<()> {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        let directory = fs::metadata(directory(path))?;
        let group = directory.gid();
        if directory.mode() & 0o020 != 0 && file.metadata()?.gid() != group {
            // This fails for a group that the creator does not belong to.
            let _ = fchown(file, None, Some(group));
        }
        let mode = 0o644 | directory.mode() & WRITABLE_BY_OTHERS;
        file.set_permissions(Permissions::from_mode(mode))
    }

    fn try_lock(file: &File) -> Result<(), TryLockError> {
        if failpoint::lacks("locks of files") {
            return Err(TryLockError::Error(io::ErrorKind::Unsupported.into()));
        }
        file.try_lock()
    }

    fn lock(file: &File) -> io::Result<()> {
        loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

// On Windows a file can be opened exclusively, and is removed when it is closed.
#[cfg(windows)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;
    use std::time::Duration;
    use std::{io, thread};

    const GENERIC_WRITE: u32 = 0x4000_0000;
    const DELETE: u32 = 0x0001_0000;
    const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
    const ERROR_ACCESS_DENIED: i32 = 5;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    #[derive(Debug)]
    pub(super) struct HeldLock {
        _file: File,
    }

    pub(super) fn take(path: &Path, wait: bool) -> io::Result<Option<HeldLock>> {
        let mut options = OpenOptions::new();
        options.create(true).write(true).access_mode(GENERIC_WRITE | DELETE);
        options.share_mode(0).custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
        let mut denied = 0;
        loop {
            let error = match options.open(path) {
                Ok(file) => return Ok(Some(HeldLock { _file: file })),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(ERROR_SHARING_VIOLATION) if !wait => return Ok(None),
                Some(ERROR_SHARING_VIOLATION) => {}
                // A file that is being removed also gives this error, for a moment.
                Some(ERROR_ACCESS_DENIED) if denied < 50 => denied += 1,
                _ => return Err(error),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(not(any(unix, windows)))]
mod system {
    use std::io;
    use std::path::Path;

    #[derive(Debug)]
    pub(super) struct HeldLock;

    pub(super) fn take(_: &Path, _: bool) -> io::Result<Option<HeldLock>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, unix))]
mod tests;
