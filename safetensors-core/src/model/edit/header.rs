//! Writes a header in place, and restores the old one after an interruption.
//! [`edit`](crate::edit#in-place) has the steps.
// Each step reaches the disk before the next begins, unless the edit is not durable. A file without
// the mark always has one of the two headers.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use std::{io, thread};

use super::Edit;
use super::backup::Backup;
use crate::file::io::hidden::{header_backup, remove_header_backup};
use crate::file::io::identity::process_id;
use crate::file::io::positional::write_all_at;
use crate::file::io::unfinished::Steps;
use crate::file::io::{FileSource, ReadAt, failpoint};
use crate::file::save::atomic::sync;
use crate::file::save::permissions::is_read_only;
use crate::format::error::Result;
use crate::format::header::{LENGTH_BYTES, mark};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderState {
    Whole,
    /// It was half written, and is the old one again.
    Restored,
    /// It is half written, without a matching backup.
    Torn,
}

/// Returns `false`, with the old header in place, if the file system records times too coarsely or
/// the file's owner cannot be given the backup.
pub(super) fn replace(edit: &Edit<'_>, new: &[u8]) -> Result<bool> {
    let source = edit.archive.source();
    let mut old = vec![0; new.len()];
    source.read_exact_at(&mut old, 0)?;
    let mark = mark(random());
    let changed = changed(&old, new);
    let write = Write { file: source.file(), mark, changed, durable: edit.durable };
    let backup = header_backup(&edit.destination);
    Ok(write.replace(old, new.to_vec(), &backup)?)
}

struct Write<'a> {
    file: &'a File,
    mark: [u8; LENGTH_BYTES],
    changed: Range<usize>,
    durable: bool,
}

impl Write<'_> {
    fn replace(&self, old: Vec<u8>, new: Vec<u8>, path: &Path) -> io::Result<bool> {
        let _steps = Steps::begin();
        let backup = Backup::new(self.mark, self.file, old, new.clone())?;
        match backup.write(path, self.file, self.durable) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                remove_backup(path);
                return Err(error);
            }
        }
        let written = self.set_mark(&new).and_then(|marked| {
            if marked {
                self.set_text(&new)?;
            }
            Ok(marked)
        });
        if let Err(error) = written {
            // If the old header cannot be written back either, the backup stays for the next edit.
            if let Err(back) = self.put_back(&backup.old) {
                return Err(also_not_put_back(&error, &back));
            }
            remove_backup(path);
            return Err(error);
        }
        remove_backup(path);
        written
    }

    /// Returns `false` if the time of writing stays, because readers then do not notice the edit.
    fn set_mark(&self, header: &[u8]) -> io::Result<bool> {
        const PAUSES: [u64; 6] = [0, 1, 2, 4, 8, 16];
        let modified = || Ok::<_, io::Error>(self.file.metadata()?.modified().ok());
        for pause in PAUSES.map(Duration::from_millis) {
            thread::sleep(pause);
            let before = modified()?;
            // Without the mark, a kill could leave a header that parses and describes other
            // tensors.
            write_all_at(self.file, &self.mark, 0)?;
            if modified()? != before && !failpoint::lacks("fine times") {
                self.sync()?;
                return Ok(true);
            }
            write_all_at(self.file, &header[..LENGTH_BYTES], 0)?;
        }
        Ok(false)
    }

    /// Writes the changed bytes at once, and then the length.
    fn set_text(&self, header: &[u8]) -> io::Result<()> {
        write_all_at(self.file, &header[self.changed.clone()], self.changed.start as u64)?;
        self.sync()?;
        write_all_at(self.file, &header[..LENGTH_BYTES], 0)?;
        self.sync()
    }

    fn put_back(&self, old: &[u8]) -> io::Result<()> {
        write_all_at(self.file, &self.mark, 0)?;
        self.sync()?;
        self.set_text(old)
    }

    fn sync(&self) -> io::Result<()> {
        if self.durable { sync(self.file) } else { Ok(()) }
    }
}

fn also_not_put_back(error: &io::Error, back: &io::Error) -> io::Error {
    let message = format!(
        "{error}; writing back the old header failed, too ({back}): the next edit of the file \
         restores it"
    );
    io::Error::new(error.kind(), message)
}

/// Also removes a backup that is not needed any more.
pub(super) fn restore(source: &FileSource, destination: &Path) -> io::Result<HeaderState> {
    let path = header_backup(destination);
    if !source.is_marked() {
        remove_header_backup(destination);
        return Ok(HeaderState::Whole);
    }
    let Some(backup) = fitting_backup(source, &path)? else { return Ok(HeaderState::Torn) };
    if is_read_only(&source.file().metadata()?) {
        let problem = "a change of the header was interrupted, and the file is read-only; make it \
                       writable to restore the header";
        return Err(io::Error::other(problem));
    }
    let _steps = Steps::begin();
    let all = LENGTH_BYTES..backup.old.len();
    let write = Write { file: source.file(), mark: backup.mark, changed: all, durable: true };
    write.put_back(&backup.old)?;
    remove_backup(&path);
    Ok(HeaderState::Restored)
}

/// Like [`restore`], without writing.
pub(super) fn can_be_restored(source: &FileSource, destination: &Path) -> io::Result<bool> {
    Ok(source.is_marked() && fitting_backup(source, &header_backup(destination))?.is_some())
}

fn fitting_backup(source: &FileSource, path: &Path) -> io::Result<Option<Backup>> {
    match Backup::read(path, source.file())? {
        Some(backup) if backup.fits(source)? => Ok(Some(backup)),
        _ => Ok(None),
    }
}

fn changed(old: &[u8], new: &[u8]) -> Range<usize> {
    let differs = |(old, new): (&u8, &u8)| old != new;
    let start = old.iter().zip(new).position(differs).unwrap_or(old.len());
    let end = old.iter().zip(new).rposition(differs).map_or(start, |last| last + 1);
    start..end
}

/// For the mark: the backup of an earlier edit must not match.
pub(super) fn random() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    use std::time::SystemTime;

    RandomState::new().hash_one((SystemTime::now(), process_id())) as u16
}

// A backup that stays does no harm.
fn remove_backup(path: &Path) {
    let _ = failpoint::hit("remove the backup").and_then(|()| fs::remove_file(path));
}
