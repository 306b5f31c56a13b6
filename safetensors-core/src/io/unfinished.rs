//! What saves that are under way would leave behind if the process ended now, and
//! [`remove_temporaries`], which takes it away.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// How to remove it.
#[derive(Debug)]
enum Unfinished {
    /// A temporary file.
    File(PathBuf),
    /// A temporary directory with all that is in it.
    Directory(PathBuf),
    /// A directory that was made for the output. It goes only if it is empty.
    Made(PathBuf),
}

/// In order of their making.
static UNFINISHED: Mutex<BTreeMap<u64, Unfinished>> = Mutex::new(BTreeMap::new());

/// Whoever makes, renames or removes something that is unfinished reads this. The process ends with
/// it written, so that nothing is made afterwards, and nothing interrupted between two steps.
static RUNNING: RwLock<()> = RwLock::new(());

thread_local! {
    /// How many of the [`Steps`] of this thread are in each other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Some steps that are taken together or not at all if [`remove_temporaries`] is called meanwhile.
/// The end of the process by any other means interrupts them, of course.
#[derive(Debug)]
pub(crate) struct Steps {
    /// None within other steps of this thread: who waits to write a lock keeps further readers out.
    _running: Option<RwLockReadGuard<'static, ()>>,
    /// Ends in the thread that it began in.
    _not_send: PhantomData<*const ()>,
}

impl Steps {
    /// Begins. Never returns if the process is about to end.
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
/// [`Steps`] that make it.
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

    /// A directory that was made for an output, and is to go if nothing comes into it.
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

/// The path, whatever the current directory is later.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

fn all() -> MutexGuard<'static, BTreeMap<u64, Unfinished>> {
    // Nothing that can panic happens under the lock.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files and directories of all saves and edits that are under way in this
/// process, so that it can end and leave nothing behind: for the thread that handles a signal such
/// as `SIGINT`. (Not for the signal handler itself: this waits for locks.)
///
/// A commit that has begun, and a header that is being written in place, are waited for: they take
/// a moment. Afterwards every save and edit of this process waits forever where it would create or
/// rename a file. So call it only to end the process at once.
///
/// Not needed where saves end by themselves, with success, an error or a panic: then they leave
/// nothing behind. What a process leaves that is killed is removed by the next save to the same
/// place.
///
/// ```no_run
/// // In the thread that waits for signals:
/// safetensors_core::save::remove_temporaries();
/// std::process::exit(130);
/// ```
pub fn remove_temporaries() {
    // Never released.
    std::mem::forget(RUNNING.write().unwrap_or_else(PoisonError::into_inner));
    // What lies in a directory was made after it.
    for unfinished in all().values().rev() {
        // What cannot be removed says by its name what it is.
        let _ = match unfinished {
            Unfinished::File(path) => fs::remove_file(path),
            Unfinished::Made(path) => fs::remove_dir(path),
            Unfinished::Directory(path) => {
                // A thread that does not know yet may put another file into it.
                fs::remove_dir_all(path).or_else(|_| fs::remove_dir_all(path))
            }
        };
    }
}
