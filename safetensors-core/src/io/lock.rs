//! [`DirectoryLock`]: one writer at a time changes which files a directory has.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::failpoint;

/// The name of the file that is locked. It is there while a writer holds the lock.
const NAME: &str = ".safetensors.lock";

/// The right to change which files a directory has, until this is dropped.
///
/// A small hidden file in the directory is locked and removed again by its holder. The system takes
/// the lock back when the process ends, however it ends; the file may then stay behind, and the
/// next writer takes it over. Threads of one process exclude each other too. Readers take no
/// notice.
///
/// The directory itself could be locked without a file. But people run commands under
/// `flock DIRECTORY`, which would then wait for themselves; and file systems of networks pass on
/// locks of files only.
///
/// Where there are no locks this is held without excluding anybody, and on some file systems of
/// networks it excludes writers of the same machine only. So whoever holds it has to see in the end
/// that no one else was at it.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// The file and its path; nothing where there are no locks.
    held: Option<(File, PathBuf)>,
}

impl DirectoryLock {
    /// Waits until no one else holds the lock of a directory, and takes it.
    pub(crate) fn wait_for(directory: &Path) -> io::Result<Self> {
        // Waiting does not end with "somebody else has it".
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
        // There are no locks; or the directory must not be written to, and whatever is about to
        // write says that better.
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

    /// The locked file; `None` if somebody else has locked it and this is not to wait.
    pub(super) fn take(path: &Path, wait: bool) -> io::Result<Option<File>> {
        loop {
            let file = open(path)?;
            match lock(&file, wait) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Whatever keeps a file system from locking, it has no locks.
                Err(TryLockError::Error(_)) => {
                    let _ = fs::remove_file(path);
                    return Err(io::ErrorKind::Unsupported.into());
                }
            }
            // Who held the lock has removed the file, and another one may be locked by now.
            if Identity::at(path)? == Some(Identity::of(&file.metadata()?)) {
                return Ok(Some(file));
            }
        }
    }

    fn open(path: &Path) -> io::Result<File> {
        // A link is not followed, and a FIFO that somebody put there is not waited for.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let open = |write| {
            let mut options = OpenOptions::new();
            options.read(true).write(write).create(write).custom_flags(flags.bits() as i32);
            options.open(path)
        };
        // A file that a writer of another user left behind can be locked without writing to it.
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
        // While it is locked: nobody else can have taken the name for a lock of theirs.
        let _ = fs::remove_file(path);
        drop(file);
    }
}

/// On Windows a file can be opened for oneself alone, and goes when it is closed.
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
                // A file that is about to go gives this too, for a moment.
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

    /// The file goes and comes at each turn, so that one may wait for a file that is gone.
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
