//! [`TempFile`]: a new file before it gets its name.
//!
//! On Linux and most file systems it has no name at all, so a killed process leaves nothing.
//! Otherwise a hidden name contains its destination's, and it is locked. The next save to the
//! destination removes files without a lock.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::leftovers::remove_leftovers;
use super::lock::{Lock, is_at, lock};
use super::permissions::{create_private_directory, rename_over};
use crate::file::io::copy::copy_range;
use crate::file::io::failpoint;
use crate::file::io::hidden::{
    ID_LEN, TEMPORARY_LOCK, TEMPORARY_SUFFIX, directory, remove_header_backup, temporary_prefix,
};
use crate::file::io::unfinished::{Owned, Steps};

// Another save seems to have removed the file. The last is kept: where a file gets another number
// each time, each seems to be removed.
const ATTEMPTS: u32 = 16;

/// Next to its destination, open for reading and writing.
#[derive(Debug)]
pub(crate) struct TempFile {
    // First, so that the name is removed before the lock ends.
    name: Option<Owned>,
    /// Whether it names a copy, which later writes do not change.
    is_copy: bool,
    file: File,
}

impl TempFile {
    /// Takes the mode from the umask or, if `private`, is for its owner only. Errors must not show
    /// its name.
    pub(crate) fn create(destination: &Path, private: bool) -> io::Result<Self> {
        failpoint::hit("create")?;
        remove_leftovers(directory(destination), file_name(destination));
        let mode = if private { 0o600 } else { 0o666 };
        match unnamed(directory(destination), mode) {
            Some(file) => Ok(Self { name: None, is_copy: false, file }),
            None => Self::named(destination, |path| create_new(path, mode)),
        }
    }

    /// Shares another file's blocks and mode. Only macOS can do that in one step, on APFS.
    pub(super) fn cloned(source: &File, destination: &Path) -> io::Result<Self> {
        remove_leftovers(directory(destination), file_name(destination));
        Self::named(destination, |path| clone(source, path))
    }

    fn named(
        destination: &Path,
        mut make: impl FnMut(&Path) -> io::Result<File>,
    ) -> io::Result<Self> {
        let _steps = Steps::begin();
        let mut attempt = 1;
        loop {
            let (file, name) = file_with_name(destination, &mut make)?;
            // Before it was locked, another save may have taken it for a leftover and removed it.
            let is_ours = !matches!(lock(&file), Lock::Busy) && is_at(&file, name.path())?;
            if is_ours || attempt == ATTEMPTS {
                return Ok(Self { name: Some(name), is_copy: false, file });
            }
            attempt += 1;
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Replaces the old file. Can be tried again.
    pub(crate) fn persist(&mut self, destination: &Path) -> io::Result<()> {
        let _steps = Steps::begin();
        self.forget_copy();
        if self.name.is_none() {
            // A file without a name can be linked only to a free name, so it gets a temporary one
            // first.
            match file_with_name(destination, |path| link(&self.file, path)) {
                Ok(((), name)) => self.name = Some(name),
                Err(_) => self.copy(destination)?,
            }
        }
        failpoint::hit("rename")?;
        match self.rename(destination) {
            // On a file system without working locks, another save may have removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.copy(destination)?;
                self.rename(destination)?;
            }
            renamed => renamed?,
        }
        self.settle(destination);
        Ok(())
    }

    /// Fails with [`io::ErrorKind::AlreadyExists`] if the name is taken.
    pub(super) fn persist_new(&mut self, destination: &Path) -> io::Result<()> {
        let _steps = Steps::begin();
        self.forget_copy();
        if self.name.is_none() {
            // A link is made only if its name is free, so no temporary name is needed.
            match link(&self.file, destination) {
                Ok(()) => {
                    self.settle(destination);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => self.copy(destination)?,
            }
        }
        failpoint::hit("rename")?;
        self.rename_to_free(destination)?;
        self.settle(destination);
        Ok(())
    }

    // On Windows `TempPath::persist` would fail if others have the entry open.
    fn rename(&mut self, destination: &Path) -> io::Result<()> {
        if let Some(name) = &self.name {
            rename_over(name.path(), destination)?;
        }
        self.keep_name();
        Ok(())
    }

    fn rename_to_free(&mut self, destination: &Path) -> io::Result<()> {
        let Some(name) = &self.name else { return Ok(()) };
        let path = TempPath::try_from_path(name.path())?;
        let Err(mut failed) = path.persist_noclobber(destination) else {
            self.keep_name();
            return Ok(());
        };
        failed.path.disable_cleanup(true);
        if failed.error.kind() == io::ErrorKind::AlreadyExists {
            return Err(failed.error);
        }
        // The file system has neither hard links nor such a rename. Another program can create the
        // file between the check and the rename.
        match fs::symlink_metadata(destination) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.rename(destination),
            Err(_) => Err(failed.error),
        }
    }

    fn keep_name(&mut self) {
        if let Some(name) = self.name.take() {
            name.keep();
        }
    }

    // The file may have changed since the failed attempt.
    fn forget_copy(&mut self) {
        if std::mem::take(&mut self.is_copy) {
            self.name = None;
        }
    }

    /// Names a copy of a file that cannot be given a name.
    fn copy(&mut self, destination: &Path) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        let (copy, name) = file_with_name(destination, |path| create_new(path, 0o600))?;
        lock(&copy);
        copy_range(&self.file, 0, &copy, 0, metadata.len())?;
        super::permissions::take_after(&copy, &metadata)?;
        copy.sync_all()?;
        self.name = Some(name.locked(copy));
        self.is_copy = true;
        Ok(())
    }

    fn settle(&self, destination: &Path) {
        // Before the lock ends: an edit of the new file may then write its own backup.
        remove_header_backup(destination);
        // The lock would keep an edit from the finished file.
        let _ = self.file.unlock();
    }
}

/// Has a hidden name that contains its destination's, and is removed at a drop.
// A file in it is locked while it is in use: network file systems do not lock directories.
#[derive(Debug)]
pub(crate) struct TempDirectory(Owned);

impl TempDirectory {
    pub(crate) fn create(destination: &Path) -> io::Result<Self> {
        remove_leftovers(directory(destination), file_name(destination));
        Self::next_to(destination)
    }

    /// Does not remove leftovers.
    pub(super) fn next_to(destination: &Path) -> io::Result<Self> {
        let _steps = Steps::begin();
        if failpoint::lacks("space for directories") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut attempt = 1;
        loop {
            let ((), path) = with_name(destination, create_private_directory)?;
            let made = Owned::directory(&path);
            // Until the file is locked, another save may take the directory for a leftover.
            match lock_in(&path) {
                Ok((lock, is_ours)) if is_ours || attempt == ATTEMPTS => {
                    return Ok(Self(made.locked(lock)));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound || attempt == ATTEMPTS => {
                    return Err(error);
                }
                _ => attempt += 1,
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves it to the next save.
    pub(crate) fn keep(self) {
        self.0.keep();
    }
}

pub(super) fn lacks_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Creates and locks the file in a new directory. Returns whether both are still there, and the
/// lock is ours.
fn lock_in(directory: &Path) -> io::Result<(File, bool)> {
    failpoint::hit("lock the directory")?;
    let path = directory.join(TEMPORARY_LOCK);
    let file = create_new(&path, 0o600)?;
    let is_ours = !matches!(lock(&file), Lock::Busy) && is_at(&file, &path)?;
    Ok((file, is_ours))
}

fn file_with_name<T>(
    destination: &Path,
    make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, Owned)> {
    let (made, path) = with_name(destination, make)?;
    Ok((made, Owned::file(&path)))
}

/// Calls `make` with a free temporary name.
fn with_name<T>(
    destination: &Path,
    make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    let prefix = temporary_prefix(file_name(destination));
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(TEMPORARY_SUFFIX).rand_bytes(ID_LEN);
    let (made, path) = builder.make_in(directory(destination), make)?.into_parts();
    Ok((made, path.keep()?))
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

#[cfg(target_vendor = "apple")]
fn clone(source: &File, path: &Path) -> io::Result<File> {
    use rustix::fs::{CWD, CloneFlags, fclonefileat};

    fclonefileat(source, CWD, path, CloneFlags::NOOWNERCOPY)?;
    let opened = File::options().read(true).write(true).open(path);
    opened.inspect_err(|_| _ = fs::remove_file(path))
}

#[cfg(not(target_vendor = "apple"))]
fn clone(_: &File, _: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns `None` if the system has no such files, or cannot name them later.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};

    use crate::file::io::identity::Identity;

    if failpoint::lacks("files without a name") {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE;
    // Every error is ignored here. If it is not about files without a name, creating a file with a
    // name fails with it, too.
    let file = File::from(openat(CWD, directory, flags, Mode::from_raw_mode(mode)).ok()?);
    let by_descriptor = Identity::behind(&descriptor(&file)).ok()?;
    (by_descriptor == Some(Identity::read(&file).ok()?)).then_some(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn unnamed(_: &Path, _: u32) -> Option<File> {
    None
}

/// Names a file without a name.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};

    failpoint::hit("link")?;
    // A file with a temporary name could be taken for a leftover, so it is locked first.
    lock(file);
    Ok(linkat(CWD, descriptor(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the path of an open file.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn descriptor(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;

    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
