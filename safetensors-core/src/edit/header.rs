//! Writing a header over the old one, and putting right what an interruption of that left.
//!
//! The backup file holds the old and the new bytes before the data, one after the other. They are
//! equally long and begin with the same length, so the first eight bytes say where the one ends. It
//! gets its name when it is complete.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Edit;
use crate::error::{ErrorKind, Result};
use crate::header::{Header, LENGTH_BYTES, Limits};
use crate::io::positional::write_all_at;
use crate::io::{FileSource, ReadAt, failpoint};
use crate::save::atomic::{AtomicFile, directory, sync};

/// Writes a header, padded to the length of the old one, in its place.
pub(super) fn replace(edit: &Edit<'_>, json: &[u8]) -> Result<()> {
    let source = edit.archive.source();
    let mut old = vec![0; edit.header().data_start() as usize];
    source.read_exact_at(&mut old, 0).map_err(ErrorKind::Io)?;
    let mut new = old[..LENGTH_BYTES].to_vec();
    new.extend_from_slice(json);
    new.resize(old.len(), b' ');

    let (file, durable) = (source.file(), edit.durable);
    let backup = backup_path(&edit.destination);
    let mut put_back = true;
    let changed = changed(&old, &new);
    let written = write_backup(&backup, file, &old, &new, durable).and_then(|()| {
        write(file, &new, &changed, durable)
            .inspect_err(|_| put_back = write(file, &old, &changed, durable).is_ok())
    });
    // Where the old bytes could not be put back, the backup is for those who come later.
    if put_back {
        remove_backup(&backup);
    }
    Ok(written.map_err(ErrorKind::Io)?)
}

/// Restores the old header if an interrupted edit left another one, and says whether it did.
/// Removes the backup.
pub(super) fn restore(source: &FileSource, destination: &Path) -> io::Result<bool> {
    let path = backup_path(destination);
    let Some(backup) = read_backup(&path, source.file())? else { return Ok(false) };
    let (old, new) = backup.split_at(backup.len() / 2);
    let torn = is_torn(source, old, new)?;
    if torn {
        write(source.file(), old, &(0..old.len()), true)?;
    }
    remove_backup(&path);
    Ok(torn)
}

/// Whether an interrupted edit left another header than the old or the new one. Nothing is written.
pub(super) fn is_left_torn(source: &FileSource, destination: &Path) -> io::Result<bool> {
    let Some(backup) = read_backup(&backup_path(destination), source.file())? else {
        return Ok(false);
    };
    let (old, new) = backup.split_at(backup.len() / 2);
    is_torn(source, old, new)
}

/// Whether the file has neither of the two headers, but something that an interrupted write of one
/// over the other can leave.
fn is_torn(source: &FileSource, old: &[u8], new: &[u8]) -> io::Result<bool> {
    let belongs =
        Header::parse_json(&old[LENGTH_BYTES..], &Limits::default()).is_ok_and(|header| {
            header.data_start().checked_add(header.data_len()) == Some(source.byte_len())
        });
    if !belongs {
        // The file was replaced since.
        return Ok(false);
    }
    let mut found = vec![0; old.len()];
    source.read_exact_at(&mut found, 0)?;
    if found == old || found == new || found[..LENGTH_BYTES] != old[..LENGTH_BYTES] {
        return Ok(false);
    }
    let mixed =
        found.iter().zip(old).zip(new).all(|((found, old), new)| found == old || found == new);
    Ok(mixed || Header::parse_json(&found[LENGTH_BYTES..], &Limits::default()).is_err())
}

/// Writes the part of a header that changes: one write, of as few bytes as possible.
fn write(file: &File, header: &[u8], changed: &Range<usize>, durable: bool) -> io::Result<()> {
    write_all_at(file, &header[changed.clone()], changed.start as u64)?;
    if durable { sync(file) } else { Ok(()) }
}

/// From the first byte that differs to the last.
fn changed(old: &[u8], new: &[u8]) -> Range<usize> {
    let differs = |(old, new): (&u8, &u8)| old != new;
    let start = old.iter().zip(new).position(differs).unwrap_or(old.len());
    let end = old.iter().zip(new).rposition(differs).map_or(start, |last| last + 1);
    start..end
}

fn backup_path(destination: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(destination.file_name().unwrap_or_default());
    name.push(".header-backup");
    directory(destination).join(name)
}

fn write_backup(
    path: &Path,
    original: &File,
    old: &[u8],
    new: &[u8],
    durable: bool,
) -> io::Result<()> {
    let backup = AtomicFile::create_in_place_of(path.to_owned())?.durable(durable);
    write_all_at(backup.file(), old, 0)?;
    write_all_at(backup.file(), new, old.len() as u64)?;
    backup.take_after(&original.metadata()?)?;
    backup.persist()
}

/// The bytes of a backup, if there is one: two headers of one length, in a file of the same owner
/// as the edited one.
fn read_backup(path: &Path, original: &File) -> io::Result<Option<Vec<u8>>> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !metadata.is_file()
        || metadata.len() > 2 * (LENGTH_BYTES as u64 + Limits::default().header_bytes)
    {
        return Ok(None);
    }
    // In a directory that others may write to, a backup of theirs must not get into this file.
    if !same_owner(&metadata, &original.metadata()?) {
        return Ok(None);
    }
    let bytes = fs::read(path)?;
    let length = bytes.first_chunk::<LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length));
    let well_formed = length.is_some_and(|length| {
        let one = length.checked_add(LENGTH_BYTES as u64);
        one.and_then(|one| one.checked_mul(2)) == Some(bytes.len() as u64)
    });
    Ok(well_formed.then_some(bytes))
}

#[cfg(unix)]
fn same_owner(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.uid() == b.uid()
}

#[cfg(not(unix))]
fn same_owner(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// Removes a backup that is no longer needed. One that stays does no harm, so it is no reason to
/// fail.
fn remove_backup(path: &Path) {
    let _ = failpoint::hit("remove the backup").and_then(|()| fs::remove_file(path));
}
