//! [`Lock`]: one process downloads a blob, and others wait.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::create_parent;
use crate::error::{Result, check_stop};

const PAUSE: Duration = Duration::from_millis(50);

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Compatible with Python's library. Ends with its process.
///
/// It only saves work: without working locks two processes download a blob under different names.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// `None` if it is impossible, or if its holder makes no progress.
    ///
    /// `progress` returns a number that changes while the holder works, or `None` to stop waiting.
    pub(crate) fn wait(
        path: &Path,
        stop: &AtomicBool,
        progress: impl Fn() -> Option<u64>,
    ) -> Result<Option<Self>> {
        Self::wait_for(path, stop, progress, PATIENCE)
    }

    fn wait_for(
        path: &Path,
        stop: &AtomicBool,
        progress: impl Fn() -> Option<u64>,
        patience: Duration,
    ) -> Result<Option<Self>> {
        let open = || {
            create_parent(path)?;
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)
        };
        let Ok(file) = open() else { return Ok(None) };
        let mut seen = None;
        let mut since = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) => {}
            }
            check_stop(stop)?;
            let now = progress();
            if now.is_none() || (seen == now && since.elapsed() > patience) {
                return Ok(None);
            }
            if seen != now {
                (seen, since) = (now, Instant::now());
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_lock_is_waited_for_as_long_as_its_holder_works() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks/e.lock");
        let stop = AtomicBool::new(false);
        let held = Lock::wait(&path, &stop, || Some(0)).unwrap().unwrap();

        let begin = Instant::now();
        let patience = Duration::from_millis(200);
        let idle = Lock::wait_for(&path, &stop, || Some(7), patience).unwrap();
        assert!(idle.is_none() && begin.elapsed() >= patience);
        assert!(Lock::wait_for(&path, &stop, || None, patience).unwrap().is_none());

        // The holder works for longer than the patience, and then ends.
        let work = AtomicU64::new(0);
        let begin = Instant::now();
        let got = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..8 {
                    thread::sleep(patience / 4);
                    work.fetch_add(1, Ordering::Relaxed);
                }
                drop(held);
            });
            let progress = || Some(work.load(Ordering::Relaxed));
            Lock::wait_for(&path, &stop, progress, patience).unwrap()
        });
        assert!(got.is_some() && begin.elapsed() >= patience * 2);

        stop.store(true, Ordering::Relaxed);
        assert!(Lock::wait(&path, &stop, || Some(0)).is_err());
    }

    #[test]
    fn without_a_lock_file_there_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let path = dir.path().join("file/e.lock");
        assert!(Lock::wait(&path, &AtomicBool::new(false), || Some(0)).unwrap().is_none());
    }
}
