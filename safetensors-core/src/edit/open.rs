//! Opening a file to edit it.

use std::fs::File;
use std::io;
use std::path::Path;

use super::{Edit, header};
use crate::error::{Error, Result};
use crate::io::{FileSource, ReadAt, SafeTensors};
use crate::save::Order;
use crate::save::atomic::{destination, refuse_special};

pub(super) fn open(path: &Path, read_only: bool) -> Result<Edit<'static>> {
    let open = || {
        let destination = destination(path)?;
        let source = if read_only {
            FileSource::open(&destination)?
        } else {
            open_and_restore(&destination)?.0
        };
        let archive = SafeTensors::from_source(source)?;
        Ok(Edit {
            path: path.into(),
            destination,
            metadata: archive.metadata().clone(),
            archive,
            read_only,
            renamed: Vec::new(),
            removed: Vec::new(),
            appended: Vec::new(),
            order: Order::Given,
            align: None,
            in_place: true,
            durable: true,
        })
    };
    open().map_err(|error: Error| error.in_path(path))
}

/// Restores the header of a file if an edit was interrupted while it wrote it in place, and says
/// whether it was.
///
/// Opening the file for the next [`Edit`] does the same. [`edit`](crate::edit) says when this is
/// needed.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// # safetensors_core::save(&path, [] as [(&str, safetensors_core::TensorBuf); 0], &Default::default())?;
/// if safetensors_core::edit::recover(&path)? {
///     eprintln!("an interrupted edit of {} was undone", path.display());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile); [`ErrorKind::Io`](crate::ErrorKind::Io),
/// also if somebody edits the file.
pub fn recover(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let restored = destination(path).and_then(|destination| open_and_restore(&destination));
    restored.map(|(_, restored)| restored).map_err(|error| error.in_path(path))
}

/// Whether the file has a header that an interrupted edit left torn, and that [`recover`] or the
/// next [`Edit`] restores. Nothing is written. While an edit is under way, this may be so for a
/// moment.
///
/// # Errors
///
/// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile); [`ErrorKind::Io`](crate::ErrorKind::Io).
pub fn is_torn(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let is_torn = || {
        let destination = destination(path)?;
        let source = FileSource::open(&destination)?;
        header::is_left_torn(&source, &destination).map_err(|error| Error::io(error, path))
    };
    is_torn().map_err(|error| error.in_path(path))
}

fn open_and_restore(destination: &Path) -> Result<(FileSource, bool)> {
    refuse_special(destination)?;
    let source = FileSource::open_to_edit(destination)?;
    let restore = || {
        lock(source.file(), destination)?;
        header::restore(&source, destination)
    };
    let restored = restore().map_err(|error| Error::io(error, destination))?;
    if restored {
        // The file has been written to since it was opened: from now on nobody else may.
        drop(source);
        let source = FileSource::open_to_edit(destination)?;
        lock(source.file(), destination).map_err(|error| Error::io(error, destination))?;
        return Ok((source, true));
    }
    Ok((source, false))
}

/// Checks that nobody has written to the file or replaced it since it was opened: that would be
/// lost.
pub(super) fn check_unchanged(source: &FileSource, destination: &Path) -> io::Result<()> {
    source.check_unchanged()?;
    if is_named(source.file(), destination)? {
        return Ok(());
    }
    Err(io::Error::other("the file has been replaced since it was opened"))
}

/// Locks the file against other edits until it is closed.
#[cfg(unix)]
fn lock(file: &File, path: &Path) -> io::Result<()> {
    use std::fs::TryLockError;

    let busy =
        || io::Error::new(io::ErrorKind::ResourceBusy, "the file is being edited by somebody else");
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(busy()),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    // Another edit may have replaced the file after it was opened here and before it was locked.
    if is_named(file, path)? { Ok(()) } else { Err(busy()) }
}

/// Whether the path still leads to this file.
#[cfg(unix)]
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let (opened, named) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((opened.dev(), opened.ino()) == (named.dev(), named.ino()))
}

/// Elsewhere a lock would keep readers out as well.
#[cfg(not(unix))]
fn lock(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Elsewhere an open file cannot be replaced.
#[cfg(not(unix))]
fn is_named(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
