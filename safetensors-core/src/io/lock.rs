//! [`DirectoryLock`]: a lock, so that one writer at a time changes the files of a directory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::failpoint;

/// The name of the lock file. It exists while a writer holds the lock.
const NAME: &str = ".safetensors.lock";

/// The right to add, replace and remove files of a directory, until this is dropped.
///
/// The holder creates and locks a small hidden file in the directory, and removes it at the end.
/// The system releases the lock when the process ends, however it ends. The file may then stay
/// behind, and the next writer uses it. Threads of one process exclude each other, too. Readers
/// ignore the lock.
///
/// The directory itself could be locked without a file. But then a command that is run under
/// `flock DIRECTORY` would wait for itself, and network file systems support locks of files only.
///
/// On a file system without locks this excludes nobody, and on some network file systems only
/// writers of the same machine. So the holder must check at the end that no other writer has
/// changed the files.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// The file and its path; `None` if the file system has no locks.
    held: Option<(File, PathBuf)>,
}

impl DirectoryLock {
    /// Waits until no one else holds the lock of a directory, and takes it.
    pub(crate) fn wait_for(directory: &Path) -> io::Result<Self> {
        // `take` returns `None` only if it does not wait.
        Ok(take(directory, true)?.unwrap_or(Self { held: None }))
    }

    /// Takes the lock of a directory; `None` if somebody else holds it.
    pub(crate) fn try_for(directory: &Path) -> io::Result<Option<Self>> {
        take(directory, false)
    }
}

fn take(directory: &Path, wait: bool) -> io::Result<Option<DirectoryLock>> {
    let path = directory.join(NAME);
    if failpoint::lacks("locks") {
        return Ok(Some(DirectoryLock { held: None }));
    }
    match system::take(&path, wait) {
        Ok(file) => Ok(file.map(|file| DirectoryLock { held: Some((file, path)) })),
        // The file system has no locks. Or the directory is not writable, and then the write that
        // follows gives the better error.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(Some(DirectoryLock { held: None }))
        }
        Err(error) => Err(error),
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if let Some((file, path)) = self.held.take() {
            system::release(file, &path);
        }
    }
}

#[cfg(unix)]
mod system {
    use std::fs::{self, File, OpenOptions, TryLockError};
    use std::io;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use crate::io::identity::Identity;

    /// Creates and locks the file. `None` if somebody else has locked it and `wait` is false.
    pub(super) fn take(path: &Path, wait: bool) -> io::Result<Option<File>> {
        loop {
            let file = open(path)?;
            match lock(&file, wait) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Any other error means that the file system has no locks.
                Err(TryLockError::Error(_)) => {
                    let _ = fs::remove_file(path);
                    return Err(io::ErrorKind::Unsupported.into());
                }
            }
            // The last holder may have removed this file, and somebody else may have locked a new
            // one. So this must still be the file at the path.
            if Identity::at(path)? == Some(Identity::of(&file.metadata()?)) {
                return Ok(Some(file));
            }
        }
    }

    fn open(path: &Path) -> io::Result<File> {
        // A link is not followed, and opening a FIFO does not wait.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let open = |write| {
            let mut options = OpenOptions::new();
            options.read(true).write(write).create(write).custom_flags(flags.bits() as i32);
            options.open(path)
        };
        // A file that another user left behind may be read-only for this one. It can be locked
        // nevertheless.
        open(true).or_else(|error| open(false).map_err(|_| error))
    }

    fn lock(file: &File, wait: bool) -> Result<(), TryLockError> {
        if !wait {
            return file.try_lock();
        }
        loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(TryLockError::Error),
            }
        }
    }

    pub(super) fn release(file: File, path: &Path) {
        // The file is removed while it is locked, so the name cannot be that of another writer's
        // lock.
        let _ = fs::remove_file(path);
        drop(file);
    }
}

/// On Windows a file can be opened so that nobody else can open it, and is removed when it is
/// closed.
#[cfg(windows)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    const GENERIC_WRITE: u32 = 0x4000_0000;
    const DELETE: u32 = 0x0001_0000;
    const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
    const ERROR_ACCESS_DENIED: i32 = 5;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    pub(super) fn take(path: &Path, wait: bool) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        options.create(true).write(true).access_mode(GENERIC_WRITE | DELETE);
        options.share_mode(0).custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
        let mut denied = 0;
        loop {
            let error = match options.open(path) {
                Ok(file) => return Ok(Some(file)),
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

    pub(super) fn release(file: File, _: &Path) {
        drop(file);
    }
}

#[cfg(not(any(unix, windows)))]
mod system {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub(super) fn take(_: &Path, _: bool) -> io::Result<Option<File>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn release(_: File, _: &Path) {}
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    fn is_empty(directory: &Path) -> bool {
        fs::read_dir(directory).unwrap().next().is_none()
    }

    #[test]
    fn one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().into();
        let first = DirectoryLock::try_for(&path).unwrap().unwrap();
        assert!(DirectoryLock::try_for(&path).unwrap().is_none());
        let (sender, receiver) = channel();
        let waiting = std::thread::spawn(move || {
            let lock = DirectoryLock::wait_for(&path).unwrap();
            sender.send(()).unwrap();
            drop(lock);
        });
        assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err());
        drop(first);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        waiting.join().unwrap();
        assert!(is_empty(directory.path()));
    }

    /// The file is created and removed at each turn, so a thread may wait for a file that is
    /// removed.
    #[test]
    fn never_two_of_many() {
        let directory = tempfile::tempdir().unwrap();
        let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = DirectoryLock::wait_for(directory.path()).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        turns.fetch_add(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(turns.into_inner(), 1600);
        assert!(is_empty(directory.path()));
    }

    #[test]
    fn a_file_that_was_left_behind_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(NAME), "").unwrap();
        let lock = DirectoryLock::try_for(directory.path()).unwrap().unwrap();
        assert!(DirectoryLock::try_for(directory.path()).unwrap().is_none());
        drop(lock);
        assert!(is_empty(directory.path()));
    }

    #[test]
    fn what_cannot_be_locked() {
        let directory = tempfile::tempdir().unwrap();
        let error = DirectoryLock::try_for(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        // A link is not followed to a file elsewhere.
        let other = directory.path().join("other");
        std::os::unix::fs::symlink(&other, directory.path().join(NAME)).unwrap();
        DirectoryLock::try_for(directory.path()).unwrap_err();
        assert!(!other.exists());
    }
}
