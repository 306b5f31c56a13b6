//! Opening a file to edit it.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::header::HeaderState;
use super::{Edit, header};
use crate::file::hash::DigestOptions;
use crate::file::io::identity::Identity;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::{FileSource, ReadAt, SafeTensors};
use crate::file::save::SaveOptions;
use crate::file::save::atomic::{destination, directory, refuse_special, replaceable};
use crate::file::save::permissions::is_read_only;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Metadata;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Preview,
    Write,
    /// Even if the file is read-only.
    Replace,
}

pub(super) fn open(path: &Path, access: Access) -> Result<Edit<'static>> {
    open_file(path, access).map_err(|error| error.in_path(path))
}

fn open_file(path: &Path, access: Access) -> Result<Edit<'static>> {
    let destination = destination(path)?;
    let read_only = access == Access::Preview;
    let (source, found) = if read_only {
        (FileSource::open(&destination)?, HeaderState::Whole)
    } else {
        open_and_restore(&destination, access == Access::Replace)?
    };
    let is_protected = is_read_only(&source.file().metadata().map_err(ErrorKind::Io)?);
    let archive = SafeTensors::from_source(source)?;
    Ok(Edit {
        path: path.into(),
        destination,
        metadata: archive.metadata().clone(),
        archive,
        read_only,
        restored: found == HeaderState::Restored,
        set: Metadata::new(),
        recorded: Metadata::new(),
        recording: DigestOptions::new(),
        renamed: Vec::new(),
        removed: Vec::new(),
        appended: Vec::new(),
        is_protected,
        in_place: false,
        change_cached: false,
        durable: true,
    })
}

/// Restores the old header of a file if an [edit in place](crate::edit#in-place) was interrupted,
/// like the next [`Edit`] does. Returns `true` if it did.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// # let tensors: [(&str, safetensors_core::TensorBuf); 0] = [];
/// # safetensors_core::save(&path, tensors, &Default::default())?;
/// if safetensors_core::edit::restore_header(&path)? {
///     eprintln!("an interrupted edit of {} was undone", path.display());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::TornHeader`](crate::ErrorKind::TornHeader) if the file was moved or copied without
/// its backup; otherwise as for [`Edit::open`].
pub fn restore_header(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let found =
        destination(path).and_then(|destination| match open_and_restore(&destination, false)? {
            // This fails with the error for a torn header.
            (source, HeaderState::Torn) => SafeTensors::from_source(source).map(|_| false),
            (_, found) => Ok(found == HeaderState::Restored),
        });
    found.map_err(|error| error.in_path(path))
}

/// Returns `true` if [`restore_header`] can restore a half-written header. During an edit this may
/// also be true for a moment.
pub fn is_torn(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let destination = destination(path).map_err(|error| error.in_path(path))?;
    let source = FileSource::open_now(&destination).map_err(|error| error.in_path(path))?;
    header::can_be_restored(&source, &destination).map_err(|error| Error::io(error, path))
}

pub(super) fn open_and_restore(
    destination: &Path,
    replace_read_only: bool,
) -> Result<(FileSource, HeaderState)> {
    refuse_special(fs::metadata(destination))?;
    let options = SaveOptions::new().replace_read_only(replace_read_only);
    let found = replaceable(destination, &options)?;
    let mut source = match found.is_some_and(|found| is_read_only(&found)) {
        true => FileSource::open_now(destination),
        false => FileSource::open_to_edit(destination),
    }?;
    match lock_and_restore(&mut source, destination) {
        Ok(found) => Ok((source, found)),
        Err(error) => Err(Error::io(error, destination)),
    }
}

fn lock_and_restore(source: &mut FileSource, destination: &Path) -> io::Result<HeaderState> {
    lock(source.file(), destination)?;
    // Of an earlier edit that was killed. This one takes the lock only if it changes something.
    DirectoryLock::clear(directory(destination));
    let found = header::restore(source, destination)?;
    // An earlier holder of the lock may have written to the file since it was opened here. From now
    // on no other edit can.
    source.refresh()?;
    Ok(found)
}

// The edit would undo such a change.
pub(super) fn check_unchanged(source: &FileSource, destination: &Path) -> io::Result<()> {
    source.check_unchanged()?;
    if is_named(source.file(), destination)? {
        return Ok(());
    }
    Err(io::Error::other("the file has been replaced since it was opened"))
}

/// Against other edits, until the file is closed.
#[cfg(unix)]
fn lock(file: &File, path: &Path) -> io::Result<()> {
    use std::fs::TryLockError;
    use std::thread;
    use std::time::Duration;

    // Saving a file and opening it to read take the lock for a moment, too. So this tries several
    // times.
    const PAUSES: [u64; 4] = [1, 2, 4, 8];
    let busy =
        || io::Error::new(io::ErrorKind::ResourceBusy, "another edit of the file is under way");
    let mut pauses = PAUSES.map(Duration::from_millis).into_iter();
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        // Other errors end the loop: some file systems have no locks.
        thread::sleep(pauses.next().ok_or_else(busy)?);
    }
    // Another edit may have replaced the file after it was opened here and before it was locked.
    if is_named(file, path)? { Ok(()) } else { Err(busy()) }
}

fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    Ok(Identity::behind(path)?.ok_or(io::ErrorKind::NotFound)? == Identity::read(file)?)
}

// On other systems a lock would keep readers out as well.
#[cfg(not(unix))]
fn lock(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}
