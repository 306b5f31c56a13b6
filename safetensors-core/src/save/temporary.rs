//! [`TempFile`]: what a file is until it takes its place.
//!
//! Where the system can (Linux, on most file systems) it has no name at all, so nothing is left of
//! it whatever happens to the process. Elsewhere it has a hidden name that says whose it is, and is
//! locked for as long as it is in use: a lock ends with the process that holds it, so the next save
//! to the same place knows what is left over, and removes it.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::io::copy::copy_range;
use crate::io::failpoint;
use crate::io::hidden::{ID_LEN, TEMPORARY_SUFFIX, directory, is_temporary, temporary_prefix};
use crate::io::identity::Identity;
use crate::io::unfinished::{Registered, Steps};

/// A new file beside its destination, open to be read and written.
#[derive(Debug)]
pub(super) struct TempFile {
    /// First, so that the name goes before the lock on it.
    name: Option<Name>,
    file: File,
}

#[derive(Debug)]
struct Name {
    path: TempPath,
    _registered: Registered,
}

impl TempFile {
    /// Makes one for a destination, with every permission that the umask leaves; or if it is
    /// `private` with those of its owner alone. An error says nothing of the temporary name, which
    /// nobody asked for.
    pub(super) fn create(destination: &Path, private: bool) -> io::Result<Self> {
        failpoint::hit("create")?;
        remove_leftovers(directory(destination), file_name(destination));
        let mode = if private { 0o600 } else { 0o666 };
        match unnamed(directory(destination), mode) {
            Some(file) => Ok(Self { name: None, file }),
            None => Self::named(destination, mode),
        }
    }

    fn named(destination: &Path, mode: u32) -> io::Result<Self> {
        let _steps = Steps::begin();
        loop {
            let (file, path) = with_name(destination, |path| create_new(path, mode))?;
            // Before it was locked, another save may have taken it for a leftover.
            let is_ours = !matches!(lock(&file), Lock::Busy)
                && is_at(&file, &path).inspect_err(|_| _ = fs::remove_file(&path))?;
            if is_ours {
                let registered = Registered::file(&path);
                return Ok(Self { name: Some(Name { path, _registered: registered }), file });
            }
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

    /// Gives the file its name, replacing what had it.
    pub(super) fn persist(self, destination: &Path) -> io::Result<()> {
        let _steps = Steps::begin();
        let Self { name, file } = self;
        let path = match name {
            Some(Name { path, .. }) => path,
            // A file can be linked to a name that is free only, and then be renamed.
            None => with_name(destination, |path| link(&file, path))
                .map(|((), path)| path)
                .or_else(|_| copy(&file, destination))?,
        };
        failpoint::hit("rename")?;
        let renamed = match path.persist(destination) {
            // On a file system whose locks do nothing, somebody may have removed it.
            Err(error) if error.error.kind() == io::ErrorKind::NotFound => {
                copy(&file, destination)?.persist(destination)
            }
            renamed => renamed,
        };
        renamed.map_err(|error| error.error)?;
        // Whoever wants to edit it now may.
        let _ = file.unlock();
        Ok(())
    }
}

/// A new directory, with a hidden name that says whose it is. It is locked, and removed with all that
/// is in it when this is dropped.
#[derive(Debug)]
pub(crate) struct TempDirectory {
    path: PathBuf,
    _registered: Registered,
    /// Open for as long as it is locked. Only Unix can open a directory.
    _lock: Option<File>,
}

impl TempDirectory {
    /// Makes one beside the file that it is for. An error says nothing of its name, which nobody
    /// asked for.
    pub(crate) fn create(destination: &Path) -> io::Result<Self> {
        remove_leftovers(directory(destination), file_name(destination));
        let _steps = Steps::begin();
        loop {
            let ((), path) = with_name(destination, create_private_directory)?;
            let path = path.keep()?;
            let opened = cfg!(unix).then(|| File::open(&path)).transpose();
            let is_ours = |file: &Option<File>| match file {
                Some(file) => Ok(!matches!(lock(file), Lock::Busy) && is_at(file, &path)?),
                None => Ok(true),
            };
            let opened = opened.and_then(|file| is_ours(&file).map(|ours| (file, ours)));
            match opened {
                Ok((lock, true)) => {
                    let registered = Registered::directory(&path);
                    return Ok(Self { path, _registered: registered, _lock: lock });
                }
                // Before it was locked, another save may have taken it for a leftover.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let _ = fs::remove_dir(&path);
                    return Err(error);
                }
            }
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // Should this fail, the next save removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies a file that cannot get a name of its own into one that has.
fn copy(file: &File, destination: &Path) -> io::Result<TempPath> {
    let metadata = file.metadata()?;
    let (copy, path) = with_name(destination, |path| create_new(path, 0o600))?;
    copy_range(file, 0, &copy, 0, metadata.len())?;
    super::permissions::take_after(&copy, &metadata)?;
    copy.sync_all()?;
    Ok(path)
}

/// Makes something under a temporary name that is free.
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

/// Makes a directory that only its owner can look into: what is put together in it may have to be
/// private.
fn create_private_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// A file without a name, where there are such files and they can be given one later.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};

    if failpoint::lacks("files without a name") {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::LARGEFILE;
    // Whatever the error is: if it is not about such files, the usual way meets it too.
    let file = File::from(openat(CWD, directory, flags, Mode::from_raw_mode(mode)).ok()?);
    let by_descriptor = fs::metadata(descriptor(&file)).ok()?;
    (Identity::of(&by_descriptor) == Identity::of(&file.metadata().ok()?)).then_some(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn unnamed(_: &Path, _: u32) -> Option<File> {
    None
}

/// Gives a file without a name a new one.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};

    failpoint::hit("link")?;
    // From now on it has a name that could be taken for a leftover.
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

/// Removes the temporary files and directories of a file that nobody holds: those of saves whose
/// process was killed. What cannot be removed stays; it is no reason not to save.
fn remove_leftovers(directory: &Path, file_name: &OsStr) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let prefix = temporary_prefix(file_name);
    for entry in entries.filter_map(Result::ok) {
        if is_temporary(&entry.file_name(), &prefix) {
            let _ = remove_leftover(&entry.path());
        }
    }
}

/// Removes a temporary file or directory if its lock is free.
#[cfg(unix)]
fn remove_leftover(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    // Not what a link leads to, and without waiting for a FIFO.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    if !matches!(lock(&file), Lock::Taken) || !is_at(&file, path).unwrap_or(false) {
        return Ok(());
    }
    if kind.is_dir() {
        return fs::remove_dir_all(path);
    }
    if kind.is_file() { fs::remove_file(path) } else { Ok(()) }
}

/// Elsewhere a locked file could not be read by others once it has its place, so none is locked.
#[cfg(not(unix))]
fn remove_leftover(_: &Path) -> io::Result<()> {
    Ok(())
}

/// What came of trying to lock a file.
#[cfg_attr(not(unix), allow(dead_code, reason = "nothing is locked there"))]
enum Lock {
    Taken,
    /// Somebody else has it.
    Busy,
    /// The file system has no locks.
    None,
}

#[cfg(unix)]
fn lock(file: &File) -> Lock {
    match file.try_lock() {
        Ok(()) => Lock::Taken,
        Err(fs::TryLockError::WouldBlock) => Lock::Busy,
        Err(fs::TryLockError::Error(_)) => Lock::None,
    }
}

#[cfg(not(unix))]
fn lock(_: &File) -> Lock {
    Lock::None
}

/// Whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(Some(Identity::of(&file.metadata()?)) == Identity::at(path)?)
}
