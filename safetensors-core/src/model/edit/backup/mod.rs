//! [`Backup`]: the old and the new header, kept while the header is written in place.
//!
//! The backup is a file next to the edited one. Numbers are little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 8 | [`BACKUP_MAGIC`] |
//! | 8 | the mark of the edited file |
//! | 8 | its inode |
//! | 8 | its length |
//! | n | all its old bytes before the data, which begin with the header's length |
//! | n | the same bytes, new |
//! | 8 | the XXH3-64 of all of these |

#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::file::io::hidden::{BACKUP_MAGIC, directory};
use crate::file::io::identity::{Identity, unless_missing};
use crate::file::io::positional::write_all_at;
use crate::file::io::{FileSource, ReadAt, next_to};
use crate::file::save::atomic::{sync, sync_directory};
use crate::file::save::permissions::take_after;
use crate::file::save::temporary::TempFile;
use crate::format::error::Error;
use crate::format::header::{Header, LENGTH_BYTES, Limits};

const FIELDS: usize = 4 * size_of::<u64>();

const HASH: usize = 8;

/// The bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

pub(super) struct Backup {
    pub(super) mark: [u8; LENGTH_BYTES],
    // The device is not stored, because its number may change when the machine restarts.
    inode: u64,
    file_len: u64,
    pub(super) old: Vec<u8>,
    new: Vec<u8>,
}

impl Backup {
    /// `new` will be written over `old`.
    pub(super) fn new(
        mark: [u8; LENGTH_BYTES],
        file: &File,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> io::Result<Self> {
        let inode = Identity::read(file)?.number();
        Ok(Self { mark, inode, file_len: file.metadata()?.len(), old, new })
    }

    /// Returns `false` if the owner of `original` could not be given the backup.
    pub(super) fn write(&self, path: &Path, original: &File, durable: bool) -> io::Result<bool> {
        let permissions = original.metadata()?;
        let mut temp = TempFile::create(path, true)?;
        take_after(temp.file(), &permissions)?;
        if !same_owner(&temp.file().metadata()?, &permissions) {
            return Ok(false);
        }
        write_all_at(temp.file(), &self.to_bytes(), 0)?;
        if durable {
            sync(temp.file())?;
        }
        temp.persist(path)?;
        if durable {
            // A backup is no help if its name may not be on the disk, so that is an error, too.
            sync_directory(directory(path))?;
        }
        Ok(true)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let fields = [self.mark, self.inode.to_le_bytes(), self.file_len.to_le_bytes()];
        let mut bytes = [&BACKUP_MAGIC[..], &fields.concat(), &self.old, &self.new].concat();
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (content, hash) = bytes.split_last_chunk::<HASH>()?;
        let (fields, headers) = content.split_at_checked(FIELDS)?;
        if !fields.starts_with(&BACKUP_MAGIC) || xxh3_64(content) != u64::from_le_bytes(*hash) {
            return None;
        }
        let (fields, _) = fields.as_chunks::<LENGTH_BYTES>();
        let &[_, mark, inode, file_len] = fields else { return None };
        let length = u64::from_le_bytes(*headers.first_chunk::<LENGTH_BYTES>()?);
        let header_len = usize::try_from(length).ok()?.checked_add(LENGTH_BYTES)?;
        if header_len.checked_mul(2)? != headers.len() {
            return None;
        }
        let (old, new) = headers.split_at(header_len);
        Some(Self {
            mark,
            inode: u64::from_le_bytes(inode),
            file_len: u64::from_le_bytes(file_len),
            old: old.to_vec(),
            new: new.to_vec(),
        })
    }

    /// Accepts only backups by the owner of `original` or this user: others must not change the
    /// file.
    pub(super) fn read(path: &Path, original: &File) -> io::Result<Option<Self>> {
        let Some(metadata) = unless_missing(fs::symlink_metadata(path))? else { return Ok(None) };
        let headers = 2 * (LENGTH_BYTES as u64 + Limits::default().header_bytes);
        let most = headers + (FIELDS + HASH) as u64;
        if !metadata.is_file()
            || metadata.len() > most
            || !(same_owner(&metadata, &original.metadata()?) || is_own(&metadata))
        {
            return Ok(None);
        }
        let name = path.file_name().unwrap_or_default();
        let bytes = next_to::read(directory(path), name, most).map_err(Error::through_io)?;
        Ok(bytes.and_then(|bytes| Self::from_bytes(&bytes)))
    }

    /// Returns `true` if the backup is for this file, and may be needed.
    pub(super) fn fits(&self, source: &FileSource) -> io::Result<bool> {
        let inode = Identity::read(source.file())?.number();
        // The device is not compared: its number may change when the machine starts again, which is
        // when a backup is needed.
        if (inode, source.file().metadata()?.len()) != (self.inode, self.file_len) {
            return Ok(false);
        }
        // The old header, which will be restored, must be valid.
        let old = Header::parse_json(&self.old[LENGTH_BYTES..], &Limits::default());
        if !old.is_ok_and(|old| old.data_start().checked_add(old.data_len()) == Some(self.file_len))
        {
            return Ok(false);
        }
        let mut found = vec![0; self.old.len()];
        source.read_exact_at(&mut found, 0)?;
        Ok(self.can_result_from_an_interruption(&found))
    }

    /// The bytes must begin with the mark, or with half of it and half of the old length, because a
    /// write of 8 bytes may be split. Each sector of the rest must begin as one header and end as
    /// the other.
    fn can_result_from_an_interruption(&self, found: &[u8]) -> bool {
        let (length, text) = found.split_at(LENGTH_BYTES);
        let (old_length, old) = self.old.split_at(LENGTH_BYTES);
        let new = &self.new[LENGTH_BYTES..];
        let halves = [0..LENGTH_BYTES / 2, LENGTH_BYTES / 2..LENGTH_BYTES];
        let marked = |half: &Range<usize>| length[half.clone()] == self.mark[half.clone()];
        let is_marked = halves.iter().any(marked)
            && halves
                .iter()
                .all(|half| marked(half) || length[half.clone()] == old_length[half.clone()]);
        // The text begins within the first sector, after the length.
        let first = SECTOR - LENGTH_BYTES;
        let bounds = |i: usize| (first + i * SECTOR).min(text.len());
        let sectors = text.len().saturating_sub(first).div_ceil(SECTOR);
        let ranges =
            std::iter::once(0..bounds(0)).chain((0..sectors).map(|i| bounds(i)..bounds(i + 1)));
        is_marked
            && ranges.into_iter().all(|range| {
                let found = &text[range.clone()];
                let old = &old[range.clone()];
                let new = &new[range];
                is_split(found, old, new) || is_split(found, new, old)
            })
    }
}

/// `found` begins like one text and continues like the other.
fn is_split(found: &[u8], one: &[u8], other: &[u8]) -> bool {
    let split = found.iter().zip(one).position(|(found, one)| found != one);
    split.is_none_or(|split| found[split..] == other[split..])
}

#[cfg(unix)]
fn same_owner(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    a.uid() == b.uid()
}

#[cfg(unix)]
fn is_own(metadata: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn is_own(_: &Metadata) -> bool {
    true
}

#[cfg(not(unix))]
fn same_owner(_: &Metadata, _: &Metadata) -> bool {
    true
}
