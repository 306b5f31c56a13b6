//! [`DirectoryLock`]: one writer at a time changes which files a directory has.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use super::failpoint;
use super::identity::Identity;

/// The right to change which files a directory has, until this is dropped.
///
/// On Unix the directory itself is locked (`flock`), so no file has to be left in it, and the system
/// takes the lock back when the process ends, however it ends. Threads of one process exclude each
/// other too. Readers take no notice.
///
/// Elsewhere, and on file systems without such locks, this is held without excluding anybody. File
/// systems of networks may exclude writers of the same machine only. So whoever holds it has to see
/// in the end that no one else was at it.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _directory: Option<File>,
}

impl DirectoryLock {
    /// Waits until no one else holds the lock of a directory, and takes it.
    pub(crate) fn wait_for(directory: &Path) -> io::Result<Self> {
        let lock = take(directory, |file| {
            loop {
                match file.lock() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result.map_err(TryLockError::Error),
                }
            }
        })?;
        // Waiting never ends with "somebody else has it".
        Ok(lock.unwrap_or(Self { _directory: None }))
    }

    /// Takes the lock of a directory; `None` if somebody else holds it.
    pub(crate) fn try_for(directory: &Path) -> io::Result<Option<Self>> {
        take(directory, File::try_lock)
    }
}

#[cfg(unix)]
fn take(
    directory: &Path,
    lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> io::Result<Option<DirectoryLock>> {
    let unlocked = || Ok(Some(DirectoryLock { _directory: None }));
    if failpoint::hit("lock").is_err() {
        return unlocked();
    }
    loop {
        let file = match File::open(directory) {
            Ok(file) => file,
            // One may be allowed to write to a directory and not to read it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return unlocked(),
            Err(error) => return Err(error),
        };
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(_)) => return unlocked(),
        }
        // While this waited, another directory may have come to have the name.
        if Identity::of(&file.metadata()?) == Identity::of(&fs::metadata(directory)?) {
            return Ok(Some(DirectoryLock { _directory: Some(file) }));
        }
    }
}

#[cfg(not(unix))]
fn take(
    _: &Path,
    _: impl Fn(&File) -> Result<(), TryLockError>,
) -> io::Result<Option<DirectoryLock>> {
    Ok(Some(DirectoryLock { _directory: None }))
}

#[cfg(all(test, unix))]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

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
        assert!(DirectoryLock::try_for(directory.path()).unwrap().is_some());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_was_moved_away_is_not_the_one_that_is_locked() {
        let root = tempfile::tempdir().unwrap();
        let (path, moved) = (root.path().join("a"), root.path().join("b"));
        fs::create_dir(&path).unwrap();
        let first = DirectoryLock::try_for(&path).unwrap().unwrap();
        let waiting = {
            let path = path.clone();
            std::thread::spawn(move || DirectoryLock::wait_for(&path).unwrap())
        };
        // Long enough to wait for the directory that is moved; if it is not, nothing is lost.
        std::thread::sleep(Duration::from_millis(100));
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        drop(first);
        let second = waiting.join().unwrap();
        assert!(DirectoryLock::try_for(&moved).unwrap().is_some());
        assert!(DirectoryLock::try_for(&path).unwrap().is_none());
        drop(second);
    }

    #[test]
    fn what_is_not_there_cannot_be_locked() {
        let directory = tempfile::tempdir().unwrap();
        let error = DirectoryLock::try_for(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
