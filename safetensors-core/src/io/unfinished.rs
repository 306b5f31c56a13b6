//! What saves that are under way would leave behind if the process ended now, and
//! [`remove_temporaries`], which takes it away.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Something unfinished, and how to remove it.
#[derive(Debug)]
enum Unfinished {
    /// A temporary file.
    File(PathBuf),
    /// A temporary directory with all that is in it.
    Directory(PathBuf),
    /// A directory that was created for the output. It is removed only if it is empty.
    Made(PathBuf),
}

/// Everything unfinished, in order of creation.
static UNFINISHED: Mutex<BTreeMap<u64, Unfinished>> = Mutex::new(BTreeMap::new());

/// [`Steps`] hold this for reading. [`remove_temporaries`] takes it for writing and never releases
/// it, so that nothing is created afterwards, and no steps are interrupted halfway.
static RUNNING: RwLock<()> = RwLock::new(());

thread_local! {
    /// The number of nested [`Steps`] of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Some steps that [`remove_temporaries`] does not interrupt: it waits until those that have begun
/// are done, and no others can begin after it. Any other end of the process can interrupt them.
#[derive(Debug)]
pub(crate) struct Steps {
    /// `None` within other steps of this thread: while a writer waits for the lock, new readers
    /// wait, too, so a second read lock could wait forever.
    _running: Option<RwLockReadGuard<'static, ()>>,
    /// Ends in the thread that it began in.
    _not_send: PhantomData<*const ()>,
}

impl Steps {
    /// Begins the steps. Never returns if the process is about to end.
    pub(crate) fn begin() -> Self {
        let running =
            (DEPTH.get() == 0).then(|| RUNNING.read().unwrap_or_else(PoisonError::into_inner));
        DEPTH.set(DEPTH.get() + 1);
        Self { _running: running, _not_send: PhantomData }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Something that [`remove_temporaries`] removes until this is dropped. Register it in the same
/// [`Steps`] that create it.
#[derive(Debug)]
pub(crate) struct Registered(u64);

impl Registered {
    /// A temporary file.
    pub(crate) fn file(path: &Path) -> Self {
        Self::new(Unfinished::File(absolute(path)))
    }

    /// A temporary directory.
    pub(crate) fn directory(path: &Path) -> Self {
        Self::new(Unfinished::Directory(absolute(path)))
    }

    /// A directory that was created for an output, to be removed if it is empty.
    pub(crate) fn made(path: &Path) -> Self {
        Self::new(Unfinished::Made(absolute(path)))
    }

    fn new(unfinished: Unfinished) -> Self {
        let mut all = all();
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, unfinished);
        Self(number)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        all().remove(&self.0);
    }
}

/// The absolute path, which stays the same if the current directory changes.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

fn all() -> MutexGuard<'static, BTreeMap<u64, Unfinished>> {
    // Nothing that can panic happens under the lock.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files and directories of all saves and edits that are under way in this
/// process, so that the process can end and leave nothing behind. Call it in a thread that waits
/// for signals such as `SIGINT`. Do not call it in a signal handler, because it waits for locks.
///
/// It waits for commits that have begun, and for headers that are being written in place, which
/// take a moment. Afterwards every save and edit of this process waits forever when it tries to
/// create or rename a file. So call it only to end the process at once.
///
/// Saves that end with success, an error or a panic leave nothing behind without this. What a
/// killed process leaves is removed by the next save to the same path, or in a large directory by a
/// later one.
///
/// ```no_run
/// // In the thread that waits for signals:
/// safetensors_core::save::remove_temporaries();
/// std::process::exit(130);
/// ```
pub fn remove_temporaries() {
    // The lock is never released.
    std::mem::forget(RUNNING.write().unwrap_or_else(PoisonError::into_inner));
    // A file in a directory was created after it, so it is removed before it.
    for unfinished in all().values().rev() {
        // Errors are ignored: a file that stays shows by its name what it is.
        let _ = match unfinished {
            Unfinished::File(path) => fs::remove_file(path),
            Unfinished::Made(path) => fs::remove_dir(path),
            Unfinished::Directory(path) => {
                // Another thread may still put a file into it, so this tries twice.
                fs::remove_dir_all(path).or_else(|_| fs::remove_dir_all(path))
            }
        };
    }
}
