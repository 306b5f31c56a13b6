//! [`DirectoryPlace`]: a path where a directory is removed or replaced.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{AtomicDirectory, not_durable};
use crate::file::io::failpoint;
use crate::file::io::hidden::{directory, is_temporary, temporary_prefix};
use crate::file::io::lock::DirectoryLock;
use crate::file::io::unfinished::Steps;
use crate::file::save::atomic::sync_directory;
use crate::file::save::leftovers::{
    NEW, OLD, REST, is_between, is_there, remove_leftovers, remove_leftovers_now,
};
use crate::file::save::temporary::{TempDirectory, lacks_space};
use crate::format::error::{Error, Result};

/// The place of a directory, or of a link to one, to be removed or replaced with its content.
///
/// Until the drop, no other process changes the place through this type. Open files stay readable.
///
/// ```
/// use safetensors_core::save::{AtomicDirectory, DirectoryPlace};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("epoch-7");
/// AtomicDirectory::create(&path)?.commit()?;
///
/// let new = AtomicDirectory::create(&path)?;
/// std::fs::write(new.path().join("model.bin"), "weights")?;
/// DirectoryPlace::hold(&path)?.put(new)?;
/// assert!(path.join("model.bin").exists());
///
/// assert!(DirectoryPlace::hold(&path)?.remove()?);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(hidden)]
pub struct DirectoryPlace {
    path: PathBuf,
    lock: DirectoryLock,
}

impl DirectoryPlace {
    /// Holds the place, whether or not a directory is there.
    #[doc(hidden)]
    pub fn hold(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let lock = DirectoryLock::wait_for(directory(path));
        let lock = lock.map_err(|error| Error::io(error, path))?;
        Ok(Self { path: path.into(), lock })
    }

    /// Removes the directory, entirely or not at all. Returns `false` if there is none.
    ///
    /// One that cannot be renamed, as in a lower layer of an overlay file system or on a full disk,
    /// loses its files one by one, in reverse order of their names.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io): the path still has the directory, or a part of one that cannot
    /// be renamed. [`NotDurable`](crate::ErrorKind::NotDurable): a power cut may bring it back.
    #[doc(hidden)]
    pub fn remove(self) -> Result<bool> {
        let Self { path, lock } = self;
        let Some(temp) = make_free(&path).map_err(|error| Error::io(error, &path))? else {
            return Ok(false);
        };
        // The old files are removed without the lock, for which others may wait.
        drop(lock);
        let synced = sync_directory(directory(&path));
        drop(temp);
        remove_leftovers(directory(&path), path.file_name().unwrap_or_default());
        synced.map_or_else(|error| Err(not_durable(error, &path)), |()| Ok(true))
    }

    /// Puts a new directory in place of the old one, which is moved aside, or
    /// [removed](DirectoryPlace::remove) file by file. If the process is killed in between,
    /// [`clean`](DirectoryPlace::clean) puts the new one in place.
    ///
    /// Waits for the disk. Call [`AtomicDirectory::sync`] before holding the place, so that others
    /// wait less.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io): the path still has the old directory, or a part of it.
    /// [`NotDurable`](crate::ErrorKind::NotDurable): the new one is in place, but may not survive a
    /// power cut.
    #[doc(hidden)]
    pub fn put(self, new: AtomicDirectory) -> Result<()> {
        let Self { path, lock } = self;
        let synced = new.sync_files().and_then(|()| complete(&path));
        synced.map_err(|error| Error::io(error, &path))?;
        let aside = new.temp.path().join(OLD);
        // They also decide whether the hidden directory is still temporary.
        let steps = Steps::begin();
        let put = || {
            let is_there = is_there(&path)?;
            // `RENAME_EXCHANGE` would be one step, but only some systems and file systems have it,
            // and the others would need these steps as well.
            let is_moved = is_there && move_aside(&path, &aside)?;
            if is_there && !is_moved {
                remove_marked(&path, new.temp.path())?;
            }
            let placed = new.place();
            if placed.is_err() && is_moved {
                let _ = failpoint::hit("move back").and_then(|()| fs::rename(&aside, &path));
            }
            placed
        };
        if let Err(error) = put() {
            if is_between(new.temp.path(), &path).unwrap_or(true) {
                // The only complete directory stays for `clean`.
                new.temp.keep();
            }
            drop((steps, lock));
            return Err(error.in_path(&path));
        }
        drop((steps, lock));
        new.sync_names()
    }

    /// Completes the replacement by a killed process, and removes its hidden directories. Errors
    /// are ignored.
    #[doc(hidden)]
    pub fn clean(path: impl AsRef<Path>) {
        let path = path.as_ref();
        if hidden_of(path).any(|hidden| is_between(&hidden, path).unwrap_or(false)) {
            let lock = DirectoryLock::wait_for(directory(path));
            let _ = lock.and_then(|_lock| complete(path));
        }
        remove_leftovers_now(directory(path), path.file_name().unwrap_or_default());
    }
}

/// Returns the temporary directory that the old one was moved to.
fn make_free(path: &Path) -> io::Result<Option<Option<TempDirectory>>> {
    complete(path)?;
    if !is_there(path)? {
        return Ok(None);
    }
    let temp = match TempDirectory::next_to(path) {
        Err(error) if lacks_space(&error) => None,
        temp => Some(temp?),
    };
    let _steps = Steps::begin();
    let is_moved = match &temp {
        Some(temp) => move_aside(path, &temp.path().join(OLD))?,
        None => false,
    };
    if !is_moved {
        remove_one_by_one(path, &mut 0)?;
    }
    Ok(Some(temp))
}

fn hidden_of(path: &Path) -> impl Iterator<Item = PathBuf> {
    let prefix = temporary_prefix(path.file_name().unwrap_or_default());
    let entries = fs::read_dir(directory(path)).into_iter().flatten().filter_map(Result::ok);
    let hidden = entries.filter(move |entry| is_temporary(&entry.file_name(), &prefix));
    hidden.map(|entry| entry.path())
}

/// Continues after a process that was killed while it moved the old directory aside. The caller
/// holds the lock.
fn complete(path: &Path) -> io::Result<()> {
    for hidden in hidden_of(path) {
        let _steps = Steps::begin();
        if is_between(&hidden, path)? {
            if is_there(path)? {
                remove_one_by_one(path, &mut 0)?;
            }
            fs::rename(hidden.join(NEW), path)?;
        }
    }
    Ok(())
}

/// Returns `false` if the file system cannot rename it.
fn move_aside(path: &Path, aside: &Path) -> io::Result<bool> {
    failpoint::hit("move aside")?;
    let renamed = if failpoint::lacks("renaming of directories") {
        Err(io::ErrorKind::CrossesDevices.into())
    } else {
        fs::rename(path, aside)
    };
    match renamed {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(false),
        renamed => renamed.map(|()| true),
    }
}

/// Leaves a mark in the hidden directory of the new one, from the first file to the end.
fn remove_marked(path: &Path, hidden: &Path) -> io::Result<()> {
    let mark = hidden.join(REST);
    File::create(&mark)?;
    let mut gone = 0;
    let removed = sync_directory(hidden).and_then(|()| remove_one_by_one(path, &mut gone));
    if removed.is_err() && gone == 0 && !failpoint::is_killed() {
        let _ = fs::remove_file(mark);
    }
    removed
}

// The first file by name is last: a manifest marks the directory as an epoch until the end.
fn remove_one_by_one(path: &Path, gone: &mut usize) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        paths.sort();
        paths.iter().rev().try_for_each(|path| remove_one_by_one(path, gone))?;
        failpoint::hit("remove the old directory")?;
        fs::remove_dir(path)?;
    } else {
        failpoint::hit("remove an old file")?;
        fs::remove_file(path)?;
    }
    *gone += 1;
    Ok(())
}
