//! [`AtomicDirectory`]: a new directory that appears at its path complete, or not at all.

mod layers;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::atomic::{directory, sync, sync_directory};
use super::leftovers::remove_leftovers_now;
use super::temporary::TempDirectory;
use crate::error::{Error, ErrorKind, Result};
use crate::io::failpoint;
use crate::io::hidden::{next, owner_of_directory, previous};
use crate::io::lock::DirectoryLock;
use crate::io::names::refuse_impossible;
use crate::io::remove::unless_missing;
use crate::io::unfinished::Steps;

/// The name of the new directory within the temporary one.
const NEW: &str = "new";

/// The name of a removed directory within the temporary one.
const OLD: &str = "old";

/// A new directory that appears at its path with all its files, or not at all. Until
/// [`commit`](AtomicDirectory::commit), and after any failure, the path has the old directory, or
/// none if there was none.
///
/// The files are written to [`path`](AtomicDirectory::path), a hidden directory beside the
/// destination: `.NAME.ID.tmp`, with six letters or digits for `ID`. A directory that is dropped
/// before the commit leaves nothing behind. A process that is killed may leave the hidden
/// directory; the next one for the same path removes it, or in a directory of more than
/// 1000 entries a later one.
///
/// ```
/// use safetensors_core::save::AtomicDirectory;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("epoch-7");
///
/// let new = AtomicDirectory::create(&path)?;
/// std::fs::write(new.path().join("model.bin"), "weights")?;
/// std::fs::write(new.path().join("notes.txt"), "the loss is 0.3")?;
/// assert!(!path.exists());
/// new.commit()?;
/// assert_eq!(std::fs::read_dir(&path)?.count(), 2);
///
/// // An old directory is replaced with all that is in it.
/// AtomicDirectory::create(&path)?.commit()?;
/// assert_eq!(std::fs::read_dir(&path)?.count(), 0);
/// assert!(AtomicDirectory::remove(&path)?);
/// assert!(!path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicDirectory {
    /// Removed with all that is in it when this is dropped.
    _temp: TempDirectory,
    new: PathBuf,
    destination: PathBuf,
    durable: bool,
    overwrite: bool,
}

impl AtomicDirectory {
    /// Creates the directory under its hidden name. Its mode follows the umask, or is that of the
    /// directory that it replaces.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], for example if the path has no parent directory, or if something other
    /// than a directory is at the path.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let create = || {
            failpoint::hit("create")?;
            refuse_impossible(path)?;
            old_directory(path)?;
            let temp = TempDirectory::create(path)?;
            let new = temp.path().join(NEW);
            fs::create_dir(&new)?;
            let destination = path.into();
            Ok(Self { _temp: temp, new, destination, durable: true, overwrite: true })
        };
        create().map_err(|error| Error::io(error, path))
    }

    /// Whether [`commit`](AtomicDirectory::commit) waits until the directory and all its files have
    /// reached the disk, so that a power cut loses nothing. On by default. So the files themselves
    /// can be written without waiting.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Whether [`commit`](AtomicDirectory::commit) replaces a directory that is not empty. On by
    /// default. It is decided while the new one takes its place, so a directory that has appeared
    /// meanwhile stays, too.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// The hidden directory. Write the files here.
    pub fn path(&self) -> &Path {
        &self.new
    }

    /// Replaces the hidden path of a file by its path after the commit, in an error about that
    /// file. Any other error is returned unchanged.
    #[must_use]
    pub fn locate(&self, error: Error) -> Error {
        let file = error.file().map(PathBuf::from);
        let name = file.as_deref().and_then(|file| file.strip_prefix(&self.new).ok());
        match (&file, name) {
            (Some(from), Some(name)) => {
                let to = self.destination.join(name);
                error.moved(from, &to)
            }
            _ => error,
        }
    }

    /// Gives the directory its name. An old directory is replaced, and removed with all that is in
    /// it.
    ///
    /// Where the system can exchange two names, as on Linux and macOS, the path always has a
    /// complete directory. Elsewhere the old one is called `.NAME.previous` for a moment. If the
    /// process ends in that moment, [`repair`](AtomicDirectory::repair) brings it back.
    ///
    /// Some directories cannot be renamed, such as directories of a lower layer of an overlay file
    /// system. Such an old directory is emptied and removed, while the new one is called
    /// `.NAME.next`. If the process ends in that moment, `repair` puts the new one in place.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileExists`] if there is a directory that must not be
    /// [replaced](AtomicDirectory::overwrite). [`ErrorKind::Io`]: the path still has the old
    /// directory, or a part of one that cannot be renamed, as the error then says.
    /// [`ErrorKind::NotDurable`]: the new one is in place, but its name could not be written to the
    /// disk.
    pub fn commit(self) -> Result<()> {
        let place = || -> Result<_> {
            if self.durable {
                // This may take long, so it comes before the lock, for which others may wait.
                sync_tree(&self.new)?;
            }
            let parent = directory(&self.destination);
            let lock = DirectoryLock::wait_for(parent)?;
            let steps = Steps::begin();
            put_in_place(&self.new, &self.destination, self.overwrite)?;
            drop((steps, lock));
            Ok(parent)
        };
        let parent = place().map_err(|error| error.in_path(&self.destination))?;
        sync_names(parent, self.durable)
            .map_err(|error| Error::from(ErrorKind::NotDurable(error)).in_path(&self.destination))
    }

    /// Removes a directory with all that is in it: the path has it complete, or does not have it at
    /// all. Returns `false` if there is none. What [`repair`](AtomicDirectory::repair) would do
    /// is done first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], for example if something other than a directory is at the path. The path
    /// then still has it. [`ErrorKind::NotDurable`]: the directory is removed, but a power cut may
    /// bring it back.
    pub fn remove(path: impl AsRef<Path>) -> Result<bool> {
        Self::remove_if(path, |_| true)
    }

    /// Like [`remove`](AtomicDirectory::remove), but only if a condition holds. While it is asked,
    /// no process can replace the directory. So the directory that is removed is the one that the
    /// condition has seen. The condition must not put another directory in place or remove one.
    ///
    /// # Errors
    ///
    /// The errors of [`remove`](AtomicDirectory::remove).
    pub fn remove_if(
        path: impl AsRef<Path>,
        condition: impl FnOnce(&Path) -> bool,
    ) -> Result<bool> {
        let path = path.as_ref();
        let remove = || {
            if old_directory(path)?.is_none() && !is_interrupted(path) {
                return Ok(None);
            }
            let temp = TempDirectory::create(path)?;
            let lock = DirectoryLock::wait_for(directory(path))?;
            let steps = Steps::begin();
            settle(path)?;
            drop(steps);
            if old_directory(path)?.is_none() || !condition(path) {
                return Ok(None);
            }
            let steps = Steps::begin();
            failpoint::hit("rename")?;
            match layers::rename(path, &temp.path().join(OLD)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Ok(false) => layers::remove(path)?,
                renamed => _ = renamed?,
            }
            drop((steps, lock));
            Ok(Some(temp))
        };
        let Some(_temp) = remove().map_err(|error| Error::io(error, path))? else {
            return Ok(false);
        };
        sync_names(directory(path), true)
            .map_err(|error| Error::from(ErrorKind::NotDurable(error)).in_path(path))?;
        Ok(true)
    }

    /// Removes the hidden directories that killed processes have left for this path.
    /// [`create`](AtomicDirectory::create) and [`remove`](AtomicDirectory::remove) do this, too.
    /// Those that a process is using stay. Errors are ignored.
    pub fn clean(path: impl AsRef<Path>) {
        let path = path.as_ref();
        remove_leftovers_now(directory(path), path.file_name().unwrap_or_default());
    }

    /// The name of the directory that a hidden one belongs to, by the name of the hidden one: that
    /// in which it is written or removed, or that of an old or a new one while the new one replaces
    /// the old one. `None` for any other name.
    ///
    /// ```
    /// use safetensors_core::save::AtomicDirectory;
    ///
    /// let owner_of = |name: &'static str| AtomicDirectory::owner_of(name.as_ref());
    /// assert_eq!(owner_of(".epoch-7.aB3dE6.tmp"), Some("epoch-7".as_ref()));
    /// assert_eq!(owner_of(".epoch-7.previous"), Some("epoch-7".as_ref()));
    /// assert_eq!(owner_of("epoch-7"), None);
    /// ```
    pub fn owner_of(name: &OsStr) -> Option<&OsStr> {
        owner_of_directory(name)
    }

    /// Brings back an old directory if a process ended while it replaced that directory in two
    /// steps, and completes the replacement or the removal of one that cannot be renamed. Returns
    /// whether that was needed. Where names can be exchanged and directories renamed, it never is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn repair(path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        let recover = || {
            if !is_interrupted(path) {
                return Ok(false);
            }
            let _lock = DirectoryLock::wait_for(directory(path))?;
            let _steps = Steps::begin();
            settle(path)
        };
        recover().map_err(|error| Error::io(error, path))
    }
}

/// The directory at a path; `None` if there is nothing. Anything else is an error.
fn old_directory(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(Some(found)),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a process ended while it replaced or removed the directory at a path, or is doing so.
fn is_interrupted(path: &Path) -> bool {
    layers::is_interrupted(path) || is_moved_aside(path)
}

/// Whether the old directory has the name `previous`, and there is no new one.
fn is_moved_aside(path: &Path) -> bool {
    previous(path).is_dir() && fs::symlink_metadata(path).is_err()
}

/// Completes what a process did not, or brings the old directory back. Returns whether that was
/// needed. If the directory at the path is complete, no other one stays that could later be taken
/// for it. The caller holds the lock, so no process is doing anything now.
fn settle(path: &Path) -> io::Result<bool> {
    if layers::is_interrupted(path) {
        layers::go_on(path)?;
    } else if is_moved_aside(path) {
        fs::rename(previous(path), path)?;
    } else {
        unless_missing(fs::remove_dir_all(previous(path)))?;
        unless_missing(fs::remove_dir_all(next(path)))?;
        return Ok(false);
    }
    Ok(true)
}

/// Gives a directory the name of another. The other one, if it exists, takes its place or is
/// removed; without `overwrite`, only an empty one is.
fn put_in_place(new: &Path, destination: &Path, overwrite: bool) -> Result<()> {
    settle(destination)?;
    let old = old_directory(destination)?;
    // WASI has no permissions, and refuses to set any.
    if let Some(old) = old.as_ref().filter(|_| cfg!(not(target_os = "wasi"))) {
        fs::set_permissions(new, old.permissions())?;
    }
    if old.is_none() || !overwrite {
        failpoint::hit("rename")?;
        place_alone(new, destination)?;
    } else if !exchange(new, destination)? {
        let previous = previous(destination);
        failpoint::hit("move aside")?;
        if !layers::rename(destination, &previous)? {
            return Ok(layers::replace(new, destination)?);
        }
        if let Err(error) = failpoint::hit("rename").and_then(|()| fs::rename(new, destination)) {
            failpoint::hit("move back")?;
            fs::rename(&previous, destination)?;
            return Err(error.into());
        }
        // What stays is removed by the next commit.
        let _ = fs::remove_dir_all(&previous);
    }
    Ok(())
}

/// Gives a directory a name that none has, or an empty directory, which it replaces.
fn place_alone(new: &Path, destination: &Path) -> Result<()> {
    let place = || {
        if cfg!(not(unix)) {
            // Only Unix replaces an empty directory by renaming another.
            unless_missing(fs::remove_dir(destination))?;
        }
        fs::rename(new, destination)
    };
    place().map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
            ErrorKind::FileExists.into()
        }
        _ => error.into(),
    })
}

/// Exchanges the names of two directories. Returns `false` where the system or the file system
/// cannot do that.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exchange(a: &Path, b: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    if failpoint::lacks("exchange of names") || failpoint::lacks("renaming of directories") {
        return Ok(false);
    }
    failpoint::hit("exchange")?;
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        // On macOS, `NOTSUP` has another number than `OPNOTSUPP`.
        Err(error) => {
            let lacking =
                [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::XDEV];
            if lacking.contains(&error) { Ok(false) } else { Err(error.into()) }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Waits until all files of a directory, and all names in it, have reached the disk.
fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            // Some systems can synchronise only a file that is open for writing. On Unix a file
            // may be read-only.
            sync(&File::options().read(cfg!(unix)).write(!cfg!(unix)).open(entry.path())?)?;
        }
    }
    sync_directory(directory)
}

fn sync_names(directory: &Path, durable: bool) -> io::Result<()> {
    if durable { sync_directory(directory) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
