//! Files that unfinished saves would leave behind, and [`remove_temporaries`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock, RwLockReadGuard};

use super::failpoint;
use super::remove::remove_hidden;
use crate::format::parallel::{lock, unpoisoned};

#[derive(Clone, Copy, Debug)]
enum Kind {
    File,
    /// With its content.
    Directory,
    /// A directory for the output, if it is empty.
    Made,
}

impl Kind {
    fn remove(self, path: &Path, lock: Option<File>) -> io::Result<()> {
        match self {
            Self::File => fs::remove_file(path),
            Self::Directory => remove_hidden(path, lock),
            Self::Made => fs::remove_dir(path),
        }
    }
}

/// In order of creation.
static UNFINISHED: Mutex<BTreeMap<u64, (Kind, PathBuf)>> = Mutex::new(BTreeMap::new());

// [`Steps`] read it. `remove_temporaries` write-locks it forever, so that nothing is created
// afterwards, and no steps are interrupted halfway.
static RUNNING: RwLock<()> = RwLock::new(());

thread_local! {
    /// Of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Steps that [`remove_temporaries`] waits for.
#[derive(Debug)]
pub(crate) struct Steps {
    // `None` in nested steps: new readers wait for a waiting writer, so a second read lock could
    // wait forever.
    _running: Option<RwLockReadGuard<'static, ()>>,
    _not_send: PhantomData<*const ()>,
}

impl Steps {
    /// Never returns if the process is about to end.
    pub(crate) fn begin() -> Self {
        let running = (DEPTH.get() == 0).then(|| unpoisoned(RUNNING.read()));
        DEPTH.set(DEPTH.get() + 1);
        Self { _running: running, _not_send: PhantomData }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Something to remove at the drop, or by [`remove_temporaries`], unless it is [kept](Self::keep).
/// Create the file and this in the same [`Steps`].
// Files that must survive their process have no owner: the backup of a header, synced steps, an
// attempt of ranks, an unfinished download. Nor has the cache of the Hub, with names that Python's
// library prescribes.
#[derive(Debug)]
pub(crate) struct Owned {
    number: u64,
    path: PathBuf,
    kind: Option<Kind>,
    /// Locked until it is removed.
    lock: Option<File>,
}

impl Owned {
    pub(crate) fn file(path: &Path) -> Self {
        Self::new(Kind::File, path)
    }

    pub(crate) fn directory(path: &Path) -> Self {
        Self::new(Kind::Directory, path)
    }

    /// Removes the directory only if it is empty.
    pub(crate) fn made(path: &Path) -> Self {
        Self::new(Kind::Made, path)
    }

    /// Holds a locked file, this one or in this directory, until the removal.
    pub(crate) fn locked(mut self, file: File) -> Self {
        self.lock = Some(file);
        self
    }

    fn new(kind: Kind, path: &Path) -> Self {
        // The absolute path stays the same if the current directory changes.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let mut all = lock(&UNFINISHED);
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, (kind, path.clone()));
        Self { number, path, kind: Some(kind), lock: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keep(mut self) {
        self.kind = None;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(kind) = self.kind.filter(|_| !failpoint::is_killed()) {
            // If this fails, the next save removes it.
            let _ = kind.remove(&self.path, self.lock.take());
        }
        lock(&UNFINISHED).remove(&self.number);
    }
}

/// Removes the temporary files of all saves and edits of this process, which must end at once:
/// afterwards they wait forever when they create or rename a file.
///
/// Call it in a thread that waits for signals such as `SIGINT`, not in a signal handler: it waits
/// for locks, for commits and for headers in place, which take a moment. Saves that end, even by a
/// panic, need no call. The next save to a path removes the files of a killed process, in a large
/// directory a later one.
///
/// ```no_run
/// // In the thread that waits for signals:
/// safetensors_core::save::remove_temporaries();
/// std::process::exit(130);
/// ```
pub fn remove_temporaries() {
    // The lock is never released.
    std::mem::forget(unpoisoned(RUNNING.write()));
    // A file in a directory was created after it, so it is removed before it.
    for (kind, path) in lock(&UNFINISHED).values().rev() {
        // Another thread may still put a file into a directory, so this tries twice. Errors are
        // ignored: the name of a file that stays shows its purpose.
        let _ = kind.remove(path, None).or_else(|_| kind.remove(path, None));
    }
}
