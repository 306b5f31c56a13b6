//! [`TempFile`]: a new file before it gets its name.
//!
//! On Linux and most of its file systems the file has no name at all, so nothing is left of it
//! whatever happens to the process. Otherwise it has a hidden name with that of its destination in
//! it, and is locked while it is in use. A lock ends with the process that holds it. So the next
//! save to the same destination knows which files are left over, and removes them.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::leftovers::remove_leftovers;
use super::lock::{Lock, is_at, lock, open_directory};
use super::permissions::{create_private_directory, rename_over};
use crate::io::copy::copy_range;
use crate::io::failpoint;
use crate::io::hidden::{
    ID_LEN, TEMPORARY_SUFFIX, directory, remove_header_backup, temporary_prefix,
};
use crate::io::unfinished::{Registered, Steps};

/// How often a temporary file or directory is created anew because another save seems to have
/// removed it. The last one is kept: on a file system that gives a file another number each time,
/// each seems to be removed.
const ATTEMPTS: u32 = 16;

/// A new file beside its destination, open to be read and written.
#[derive(Debug)]
pub(super) struct TempFile {
    /// This field comes first, so that the name is removed before the lock on the file ends.
    name: Option<Name>,
    file: File,
}

#[derive(Debug)]
struct Name {
    path: TempPath,
    _registered: Registered,
}

impl Name {
    /// The file is removed when this is dropped. Called in the steps that create it.
    fn new(path: TempPath) -> Self {
        let registered = Registered::file(&path);
        Self { path, _registered: registered }
    }
}

impl TempFile {
    /// Creates a temporary file for a destination. Its mode follows the umask or, if it is
    /// `private`, gives permissions to its owner only. Errors must not show the temporary file's
    /// name.
    pub(super) fn create(destination: &Path, private: bool) -> io::Result<Self> {
        failpoint::hit("create")?;
        remove_leftovers(directory(destination), file_name(destination));
        let mode = if private { 0o600 } else { 0o666 };
        match unnamed(directory(destination), mode) {
            Some(file) => Ok(Self { name: None, file }),
            None => Self::named(destination, |path| create_new(path, mode)),
        }
    }

    /// Creates a temporary file for a destination that shares the blocks of another file, and has
    /// its mode. Only macOS can do that in one step, on APFS.
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
            let (file, path) = with_name(destination, &mut make)?;
            // Before it was locked, another save may have taken it for a leftover and removed it.
            let is_ours = !matches!(lock(&file), Lock::Busy)
                && is_at(&file, &path).inspect_err(|_| _ = fs::remove_file(&path))?;
            if is_ours || attempt == ATTEMPTS {
                return Ok(Self { name: Some(Name::new(path)), file });
            }
            attempt += 1;
        }
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The open file, to be written to at its cursor.
    pub(super) fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, and replaces the old file. After an error this can be tried again.
    pub(super) fn persist(&mut self, destination: &Path) -> io::Result<()> {
        let _steps = Steps::begin();
        if self.name.is_none() {
            // A file without a name can be linked only to a free name, so it gets a temporary one
            // first.
            let linked = with_name(destination, |path| link(&self.file, path));
            self.name = Some(match linked {
                Ok(((), path)) => Name::new(path),
                Err(_) => self.copied(destination)?,
            });
        }
        failpoint::hit("rename")?;
        match self.rename(destination) {
            // On a file system without working locks, another save may have removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.name = Some(self.copied(destination)?);
                self.rename(destination)?;
            }
            renamed => renamed?,
        }
        self.settle(destination);
        Ok(())
    }

    /// Gives the file its name, if nothing has that name yet. Otherwise fails with
    /// [`io::ErrorKind::AlreadyExists`].
    pub(super) fn persist_new(&mut self, destination: &Path) -> io::Result<()> {
        let _steps = Steps::begin();
        if self.name.is_none() {
            // A link is made only if its name is free, so no temporary name is needed.
            match link(&self.file, destination) {
                Ok(()) => {
                    self.settle(destination);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => self.name = Some(self.copied(destination)?),
            }
        }
        failpoint::hit("rename")?;
        self.rename_to_free(destination)?;
        self.settle(destination);
        Ok(())
    }

    /// Renames the file, and replaces what has the new name. `TempPath::persist` would fail on
    /// Windows if others have that open.
    fn rename(&mut self, destination: &Path) -> io::Result<()> {
        let Some(name) = &mut self.name else { return Ok(()) };
        rename_over(&name.path, destination)?;
        name.path.disable_cleanup(true);
        self.name = None;
        Ok(())
    }

    /// Renames the file if the new name is free.
    fn rename_to_free(&mut self, destination: &Path) -> io::Result<()> {
        let Some(Name { path, _registered }) = self.name.take() else { return Ok(()) };
        let Err(failed) = path.persist_noclobber(destination) else { return Ok(()) };
        self.name = Some(Name { path: failed.path, _registered });
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

    /// A copy that has a name, for a file that cannot be given one.
    fn copied(&self, destination: &Path) -> io::Result<Name> {
        let metadata = self.file.metadata()?;
        let (copy, path) = with_name(destination, |path| create_new(path, 0o600))?;
        copy_range(&self.file, 0, &copy, 0, metadata.len())?;
        super::permissions::take_after(&copy, &metadata)?;
        copy.sync_all()?;
        Ok(Name::new(path))
    }

    /// The last steps for a file that has its name.
    fn settle(&self, destination: &Path) {
        // Before the lock ends: an edit of the new file may then write its own backup.
        remove_header_backup(destination);
        // The lock would keep an edit from the finished file.
        let _ = self.file.unlock();
    }
}

/// A new directory, with a hidden name that has that of its destination in it. It is locked while
/// it is in use. When this is dropped, it is removed with all that is in it.
#[derive(Debug)]
pub(crate) struct TempDirectory {
    path: PathBuf,
    _registered: Registered,
    /// Open for as long as it is in use.
    _lock: Option<File>,
}

impl TempDirectory {
    /// Creates a temporary directory beside a destination. Errors must not show its name.
    pub(crate) fn create(destination: &Path) -> io::Result<Self> {
        remove_leftovers(directory(destination), file_name(destination));
        let _steps = Steps::begin();
        let mut attempt = 1;
        loop {
            let ((), path) = with_name(destination, create_private_directory)?;
            let path = path.keep()?;
            let opened = open_directory(&path);
            let is_ours = |file: &Option<File>| match file {
                Some(file) => Ok(!matches!(lock(file), Lock::Busy) && is_at(file, &path)?),
                None => Ok(true),
            };
            let opened = opened.and_then(|file| is_ours(&file).map(|ours| (file, ours)));
            match opened {
                Ok((lock, is_ours)) if is_ours || attempt == ATTEMPTS => {
                    let registered = Registered::directory(&path);
                    return Ok(Self { path, _registered: registered, _lock: lock });
                }
                // Before it was locked, another save may have taken it for a leftover and removed
                // it.
                Ok(_) => _ = fs::remove_dir(&path),
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {}
                Err(error) => {
                    let _ = fs::remove_dir(&path);
                    return Err(error);
                }
            }
            attempt += 1;
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // If this fails, the next save removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Calls `make` with a temporary name that is free.
fn with_name<T>(
    destination: &Path,
    make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, TempPath)> {
    let prefix = temporary_prefix(file_name(destination));
    let mut builder = tempfile::Builder::new();
    let made = builder
        .prefix(&prefix)
        .suffix(TEMPORARY_SUFFIX)
        .rand_bytes(ID_LEN)
        .make_in(directory(destination), make)?;
    Ok(made.into_parts())
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

/// A new file that shares the blocks of another one.
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

/// A file without a name; `None` if the system has no such files, or cannot give them a name later.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};

    use crate::io::identity::Identity;

    if failpoint::lacks("files without a name") {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE;
    // Every error is ignored here. If it is not about files without a name, creating a file with a
    // name fails with it, too.
    let file = File::from(openat(CWD, directory, flags, Mode::from_raw_mode(mode)).ok()?);
    let by_descriptor = Identity::behind(&descriptor(&file)).ok()?;
    (by_descriptor == Some(Identity::of(&file).ok()?)).then_some(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn unnamed(_: &Path, _: u32) -> Option<File> {
    None
}

/// Gives a file without a name a new name.
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

/// The path that leads to an open file, for as long as it is open.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn descriptor(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;

    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
