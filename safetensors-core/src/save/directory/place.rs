//! [`DirectoryPlace`]: where a directory is removed or replaced by its owner.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{AtomicDirectory, not_durable};
use crate::error::{Error, Result};
use crate::io::failpoint;
use crate::io::hidden::{directory, is_temporary, temporary_prefix};
use crate::io::lock::DirectoryLock;
use crate::io::unfinished::Steps;
use crate::save::atomic::sync_directory;
use crate::save::leftovers::{NEW, OLD, is_between, is_there, remove_leftovers_now};
use crate::save::temporary::TempDirectory;

/// The place of a directory whose owner removes or replaces it, with everything in it. A link to a
/// directory may be there, too: then only the link goes.
///
/// No other process puts, replaces or removes a directory there, through this type, until this is
/// dropped. So the directory that goes is the one that the caller has looked at. Files that are open
/// stay readable.
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
pub struct DirectoryPlace {
    path: PathBuf,
    lock: DirectoryLock,
}

impl DirectoryPlace {
    /// Holds the place, whether or not a directory is there.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io), for example if the path has no parent directory.
    pub fn hold(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let lock = DirectoryLock::wait_for(directory(path));
        let lock = lock.map_err(|error| Error::io(error, path))?;
        Ok(Self { path: path.into(), lock })
    }

    /// Removes the directory: the path has it complete, or does not have it at all. Returns `false`
    /// if there is none.
    ///
    /// Some directories cannot be renamed, such as directories of a lower layer of an overlay file
    /// system. Their files are removed one by one, in the reverse order of their names.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io): the path still has the directory.
    /// [`NotDurable`](crate::ErrorKind::NotDurable): it is removed, but a power cut may bring it
    /// back.
    pub fn remove(self) -> Result<bool> {
        let Self { path, lock } = self;
        let aside = || {
            if !is_there(&path)? {
                return Ok(None);
            }
            let temp = TempDirectory::create(&path)?;
            let _steps = Steps::begin();
            move_aside(&path, &temp.path().join(OLD))?;
            Ok(Some(temp))
        };
        let Some(_temp) = aside().map_err(|error| Error::io(error, &path))? else {
            return Ok(false);
        };
        drop(lock);
        let synced = sync_directory(directory(&path));
        synced.map_or_else(|error| Err(not_durable(error, &path)), |()| Ok(true))
    }

    /// Puts a new directory there. An old one is moved aside first, and removed afterwards. So for a
    /// moment, nothing is there. A process that is killed then leaves both under hidden names, and
    /// [`clean`](DirectoryPlace::clean) puts the new one in place.
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io): the path still has the old directory, or a part of one that
    /// cannot be [renamed](DirectoryPlace::remove). [`NotDurable`](crate::ErrorKind::NotDurable):
    /// the new one is in place, but its name could not be written to the disk.
    pub fn put(self, new: AtomicDirectory) -> Result<()> {
        let aside = new.temp.path().join(OLD);
        let put = || {
            new.sync_files()?;
            let _steps = Steps::begin();
            let is_moved = is_there(&self.path)? && move_aside(&self.path, &aside)?;
            let placed = new.place();
            if placed.is_err() && is_moved {
                let _ = failpoint::hit("move back").and_then(|()| fs::rename(&aside, &self.path));
            }
            placed
        };
        if let Err(error) = put() {
            if is_between(new.temp.path(), &self.path).unwrap_or(true) {
                // The path has nothing now, so what `clean` puts there must stay.
                new.temp.keep();
            }
            return Err(error.in_path(&self.path));
        }
        drop(self.lock);
        new.sync_names()
    }

    /// Completes what a process was killed in while it replaced the directory at a path, and
    /// removes the hidden directories that killed processes have left for this path. Hidden
    /// directories that a process is using stay. Errors are ignored.
    pub fn clean(path: impl AsRef<Path>) {
        let path = path.as_ref();
        let parent = directory(path);
        let file_name = path.file_name().unwrap_or_default();
        let prefix = temporary_prefix(file_name);
        for entry in fs::read_dir(parent).into_iter().flatten().filter_map(|entry| entry.ok()) {
            if is_temporary(&entry.file_name(), &prefix) {
                let _ = complete(&entry.path(), path);
            }
        }
        remove_leftovers_now(parent, file_name);
    }
}

/// Puts the new directory in place if a process was killed after it had moved the old one aside.
fn complete(hidden: &Path, path: &Path) -> io::Result<()> {
    if !is_between(hidden, path)? {
        return Ok(());
    }
    let _lock = DirectoryLock::wait_for(directory(path))?;
    let _steps = Steps::begin();
    // Whoever replaces a directory holds the lock until the new one has the name.
    if is_between(hidden, path)? { fs::rename(hidden.join(NEW), path) } else { Ok(()) }
}

/// Renames a directory, and returns `true`. One that the file system cannot rename is removed, and
/// an empty one is aside.
fn move_aside(path: &Path, aside: &Path) -> io::Result<bool> {
    failpoint::hit("move aside")?;
    let renamed = if failpoint::lacks("renaming of directories") {
        Err(io::ErrorKind::CrossesDevices.into())
    } else {
        fs::rename(path, aside)
    };
    match renamed {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            fs::create_dir(aside)?;
            remove_one_by_one(path).map(|()| false)
        }
        renamed => renamed.map(|()| true),
    }
}

/// Removes a directory whose files have to go one by one. So its first file by name, such as a
/// manifest, says until the end what it was.
fn remove_one_by_one(directory: &Path) -> io::Result<()> {
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    for path in paths.iter().rev() {
        failpoint::hit("remove an old file")?;
        if fs::symlink_metadata(path)?.is_dir() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
    }
    failpoint::hit("remove the old directory")?;
    fs::remove_dir(directory)
}
