use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::file::io::failpoint::without;

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn one_at_a_time_holds_the_lock() {
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
fn never_two_of_many_threads_hold_the_lock() {
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
fn missing_directories_and_links_cannot_be_locked() {
    let directory = tempfile::tempdir().unwrap();
    let error = DirectoryLock::try_for(&directory.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    // A link is not followed to a file elsewhere.
    let other = directory.path().join("other");
    std::os::unix::fs::symlink(&other, directory.path().join(NAME)).unwrap();
    DirectoryLock::try_for(directory.path()).unwrap_err();
    assert!(!other.exists());
}

#[test]
fn who_may_write_to_the_directory_may_write_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    for (mode, expected) in
        [(0o700, 0o644), (0o755, 0o644), (0o775, 0o664), (0o777, 0o666), (0o1777, 0o666)]
    {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        let _lock = DirectoryLock::wait_for(directory.path()).unwrap();
        let found = fs::metadata(directory.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, expected, "{mode:o}");
    }
}

#[test]
fn a_leftover_lock_file_is_removed_unless_it_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    DirectoryLock::clear(directory.path());
    fs::write(directory.path().join(NAME), "").unwrap();
    DirectoryLock::clear(directory.path());
    assert!(is_empty(directory.path()));
    let held = DirectoryLock::wait_for(directory.path()).unwrap();
    DirectoryLock::clear(directory.path());
    assert!(!is_empty(directory.path()));
    assert!(DirectoryLock::try_for(directory.path()).unwrap().is_none());
    drop(held);
}

/// As when another process opens a file to edit it.
#[test]
fn a_lock_that_is_held_briefly_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let is_taken = |_| {
        let held = DirectoryLock::wait_for(directory.path()).unwrap();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1));
            drop(held);
        });
        let taken = DirectoryLock::try_for(directory.path()).unwrap();
        holder.join().unwrap();
        taken.is_some()
    };
    // The holder may be slow once, but not each time.
    assert!((0..50).any(is_taken));
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let take = || without("access to the lock file", || DirectoryLock::wait_for(directory.path()));
    // The directory is not writable, and has no lock file.
    take().unwrap();
    let path = directory.path().join(NAME);
    fs::write(&path, "").unwrap();
    let error = take().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains(NAME), "{error}");
    assert!(path.exists());
}

/// Another writer may hold a lock, as on a file system that has run out of locks.
#[test]
fn a_file_that_cannot_be_locked_is_removed_only_by_its_creator() {
    let directory = tempfile::tempdir().unwrap();
    let take = || without("locks of files", || DirectoryLock::wait_for(directory.path()));
    drop(take().unwrap());
    assert!(is_empty(directory.path()));
    fs::write(directory.path().join(NAME), "").unwrap();
    drop(take().unwrap());
    assert!(directory.path().join(NAME).exists());
}
