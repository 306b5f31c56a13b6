//! Removes hidden directories, and files that may be missing.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::hidden::TEMPORARY_LOCK;
use super::identity::unless_missing;

/// Removes the content, even read-only files.
// The lock file is last, so that the next save can remove a directory that is left half removed.
pub(crate) fn remove_hidden(path: &Path, lock: Option<File>) -> io::Result<()> {
    empty(path)?;
    // NFS and Windows keep a file that is open.
    drop(lock);
    unless_missing(fs::remove_file(path.join(TEMPORARY_LOCK)))?;
    unless_missing(fs::remove_dir(path)).map(drop)
}

/// Removes all but the lock file.
// Follows no link, even if another program replaces a directory by one at that moment.
#[cfg(unix)]
fn empty(path: &Path) -> io::Result<()> {
    use rustix::fs::CWD;

    empty_at(&open_directory(CWD, path)?, TEMPORARY_LOCK.as_bytes())
}

#[cfg(unix)]
fn empty_at(directory: &std::os::fd::OwnedFd, except: &[u8]) -> io::Result<()> {
    use rustix::fs::{AtFlags, Dir, Mode, fchmod, unlinkat};

    // Nothing can be removed from a directory that is read-only.
    let _ = fchmod(directory, Mode::RWXU);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [&b"."[..], b"..", except].contains(&name.to_bytes()) {
            continue;
        }
        let Err(error) = unlinkat(directory, name, AtFlags::empty()) else { continue };
        // It may be a directory. The error that shows it depends on the system.
        match open_directory(directory, name) {
            Ok(inner) => {
                empty_at(&inner, b"")?;
                unlinkat(directory, name, AtFlags::REMOVEDIR)?;
            }
            Err(_) => _ = unless_missing(Err::<(), _>(error.into()))?,
        }
    }
    Ok(())
}

#[cfg(unix)]
fn open_directory(
    parent: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags, openat};

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

#[cfg(not(unix))]
fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == TEMPORARY_LOCK {
            continue;
        }
        unless_missing(match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        })?;
    }
    Ok(())
}
