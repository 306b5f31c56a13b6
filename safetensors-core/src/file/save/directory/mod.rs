//! [`AtomicDirectory`]: a new directory that appears complete, or not at all.

mod place;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use place::DirectoryPlace;

use super::atomic::{directory, sync_directory, sync_path};
use super::directories::NewDirectories;
use super::leftovers::NEW;
use super::temporary::TempDirectory;
use crate::file::io::failpoint;
use crate::file::io::identity::unless_missing;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::names::refuse_impossible;
use crate::file::io::unfinished::Steps;
use crate::format::error::{Error, ErrorKind, Result};

/// A new directory that appears at its path with all its files, or not at all. It replaces nothing
/// but an empty directory.
///
/// Until [`commit`](AtomicDirectory::commit), [`path`](AtomicDirectory::path) is a hidden directory
/// next to the destination: `.NAME.ID.tmp`. A drop removes it. If the process is killed, the next
/// one for the path does, or in a directory of more than 1000 entries a later one.
///
/// ```
/// use safetensors_core::save::AtomicDirectory;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("run/epoch-7");
///
/// let new = AtomicDirectory::create(&path)?;
/// std::fs::write(new.path().join("model.bin"), "weights")?;
/// std::fs::write(new.path().join("notes.txt"), "the loss is 0.3")?;
/// assert!(!path.exists());
/// new.commit()?;
/// assert_eq!(std::fs::read_dir(&path)?.count(), 2);
///
/// // Another one for the same path is refused.
/// AtomicDirectory::create(&path)?.commit().unwrap_err();
/// assert_eq!(std::fs::read_dir(&path)?.count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicDirectory {
    /// Removed with its content at a drop.
    temp: TempDirectory,
    new: PathBuf,
    destination: PathBuf,
    durable: bool,
    is_synced: bool,
    /// Dropped after the temporary directory, which is in them.
    parents: NewDirectories,
}

impl AtomicDirectory {
    /// Creates the directory under its hidden name, and missing parents. Its mode follows the
    /// umask, or the empty directory that it replaces.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let create = || {
            failpoint::hit("create")?;
            refuse_impossible(path)?;
            let parents = NewDirectories::create_all(directory(path))?;
            let temp = TempDirectory::create(path)?;
            let new = temp.path().join(NEW);
            fs::create_dir(&new)?;
            let destination = path.into();
            Ok(Self { temp, new, destination, durable: true, is_synced: false, parents })
        };
        create().map_err(|error| Error::io(error, path))
    }

    /// Sets whether [`commit`](AtomicDirectory::commit) waits until all files have reached the
    /// disk, so that a power cut loses nothing. On by default, so the files can be written without
    /// waiting.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Returns the hidden directory, for the files.
    pub fn path(&self) -> &Path {
        &self.new
    }

    /// Replaces the hidden path in an error by the path after the commit.
    #[must_use]
    #[doc(hidden)]
    pub fn locate(&self, error: Error) -> Error {
        error.moved_below(&self.new, &self.destination)
    }

    /// Waits until the files have reached the disk, unless [`durable`](Self::durable) is off, so
    /// that [`commit`](Self::commit) and [`DirectoryPlace::put`] need not. Write none afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn sync(mut self) -> Result<Self> {
        self.sync_files().map_err(|error| Error::io(error, &self.destination))?;
        self.is_synced = true;
        Ok(self)
    }

    /// Gives the directory its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileExists`] if the path has anything but an empty directory at that moment;
    /// [`ErrorKind::Io`]; [`ErrorKind::NotDurable`]: the directory is in place, but may not survive
    /// a power cut.
    pub fn commit(self) -> Result<()> {
        let place = || {
            // This may take long, so it comes before the lock, for which others may wait.
            self.sync_files()?;
            let _lock = DirectoryLock::wait_for(directory(&self.destination))?;
            let _steps = Steps::begin();
            self.place()
        };
        place().map_err(|error| error.in_path(&self.destination))?;
        self.sync_names()
    }

    fn sync_files(&self) -> io::Result<()> {
        if self.durable && !self.is_synced { sync_tree(&self.new) } else { Ok(()) }
    }

    /// Replaces nothing, or an empty directory. The caller holds the lock.
    fn place(&self) -> Result<()> {
        failpoint::hit("rename")?;
        match fs::symlink_metadata(&self.destination) {
            Ok(found) if !found.is_dir() => return Err(ErrorKind::FileExists.into()),
            #[cfg(unix)]
            Ok(empty) => take_mode(&self.new, &empty)?,
            _ => {}
        }
        let rename = || {
            if cfg!(not(unix)) {
                // Only Unix replaces an empty directory by renaming another.
                unless_missing(fs::remove_dir(&self.destination))?;
            }
            fs::rename(&self.new, &self.destination)
        };
        rename().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
                ErrorKind::FileExists.into()
            }
            _ => error.into(),
        })
    }

    fn sync_names(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let synced =
            sync_directory(directory(&self.destination)).and_then(|()| self.parents.sync());
        synced.map_err(|error| not_durable(error, &self.destination))
    }
}

// The owner keeps all rights, without which the directory could be neither renamed nor removed.
#[cfg(unix)]
fn take_mode(new: &Path, empty: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fs::set_permissions(new, fs::Permissions::from_mode(empty.mode() & 0o7777 | 0o700))
}

fn not_durable(error: io::Error, path: &Path) -> Error {
    Error::from(ErrorKind::NotDurable(error)).in_path(path)
}

fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            sync_path(&entry.path())?;
        }
    }
    sync_directory(directory)
}

#[cfg(test)]
mod tests;
