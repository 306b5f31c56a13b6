//! [`InPlace`]: a file whose data is changed in place, and that readers refuse meanwhile.

use std::io;
use std::path::{Path, PathBuf};

use super::header::{HeaderState, random};
use super::open::open_and_restore;
use crate::error::{Error, ErrorKind, Result};
use crate::header::{Header, LENGTH_BYTES, Limits, data_mark, parse_data_mark};
use crate::io::hidden::JOURNAL_SUFFIX;
use crate::io::identity::Identity;
use crate::io::positional::write_all_at;
use crate::io::{FileSource, ReadAt};
use crate::save::atomic::{destination, sync};
use crate::save::cached::refuse_cached;

/// A file whose data is changed in place. It is for the package `safetensors-delta`, which keeps a
/// journal of the change.
///
/// From [`begin`](InPlace::begin) to [`end`](InPlace::end) a mark in the upper half of the header's
/// length makes every reader refuse the file. The header stays, so that the mark alone tells where
/// the data is. If the process ends meanwhile, the mark stays; whoever has the journal opens the
/// file as this, writes the data again, and ends. On Unix the file is locked against edits.
#[derive(Debug)]
pub struct InPlace {
    path: PathBuf,
    source: FileSource,
    header: Header,
    length: [u8; LENGTH_BYTES],
    number: Option<u16>,
    durable: bool,
}

impl InPlace {
    /// How the name of a journal ends: such a name [is temporary](crate::framework::is_temporary_name).
    pub const JOURNAL_SUFFIX: &str = JOURNAL_SUFFIX;

    /// Opens a file, and locks it. If an edit was interrupted in its header, that is restored. With
    /// `durable`, each step waits until it has reached the disk.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InHubCache`], and those of [`Edit::open`](super::Edit::open).
    pub fn open(path: impl AsRef<Path>, durable: bool) -> Result<Self> {
        let path = path.as_ref();
        Self::open_now(path, durable).map_err(|error| error.in_path(path))
    }

    fn open_now(path: &Path, durable: bool) -> Result<Self> {
        refuse_cached(path)?;
        let (source, state) = open_and_restore(&destination(path)?)?;
        let mut found = [0; LENGTH_BYTES];
        source.read_exact_at(&mut found, 0).map_err(ErrorKind::Io)?;
        let (length, number) = match parse_data_mark(found) {
            Some((length, number)) => (length, Some(number)),
            None if state == HeaderState::Torn => return Err(ErrorKind::TornHeader.into()),
            None => (found, None),
        };
        let limits = Limits::default();
        let start = LENGTH_BYTES as u64;
        let available = source.byte_len().saturating_sub(start);
        let mut json = vec![0; Header::check_length(length, available, &limits)?];
        source.read_exact_at(&mut json, start).map_err(ErrorKind::Io)?;
        let header = Header::parse_json(&json, &limits)?;
        header.check_data_len(available.saturating_sub(json.len() as u64))?;
        Ok(Self { path: path.into(), source, header, length, number, durable })
    }

    /// The header, which does not change.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file, to be read.
    pub fn source(&self) -> &FileSource {
        &self.source
    }

    /// The number of the change that has begun and not ended, or that was interrupted.
    pub fn number(&self) -> Option<u16> {
        self.number
    }

    /// A number for a change, which other changes hardly have.
    pub fn new_number() -> u16 {
        random()
    }

    /// What tells the file from one that takes its place: the number of its inode, and its length.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn identity(&self) -> Result<(u64, u64)> {
        let identity = Identity::of(self.source.file()).map_err(|error| self.error(error))?;
        Ok((identity.number(), self.source.byte_len()))
    }

    /// Marks the file, which has to be as it was when it was opened, with the number of a change.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if the file has changed.
    pub fn begin(&mut self, number: u16) -> Result<()> {
        if self.number.is_none() {
            self.source.check_unchanged().map_err(|error| self.error(error))?;
        }
        self.number = Some(number);
        self.set_length(data_mark(self.length, number))
    }

    /// Writes at an offset of the file, after its header.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.number.is_none() || offset < self.header.data_start() {
            let error =
                io::Error::other("nothing is written before the change begins, or into the header");
            return Err(self.error(error));
        }
        write_all_at(self.source.file(), bytes, offset).map_err(|error| self.error(error))
    }

    /// Waits until what was written has reached the disk. Of several files, all have to before any
    /// [ends](InPlace::end).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn sync(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        sync(self.source.file()).map_err(|error| self.error(error))
    }

    /// Removes the mark.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn end(&mut self) -> Result<()> {
        self.set_length(self.length)?;
        self.number = None;
        Ok(())
    }

    fn set_length(&self, length: [u8; LENGTH_BYTES]) -> Result<()> {
        let half = LENGTH_BYTES / 2;
        let written = write_all_at(self.source.file(), &length[half..], half as u64);
        written.map_err(|error| self.error(error))?;
        self.sync()
    }

    fn error(&self, error: io::Error) -> Error {
        Error::io(error, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::edit::{Edit, is_torn, restore_header};
    use crate::{SafeTensors, SaveOptions, TensorView, save};

    #[test]
    fn readers_refuse_the_file_from_the_beginning_to_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w.safetensors");
        let view = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
        save(&path, [("w", view)], &SaveOptions::new().durable(false)).unwrap();
        let old = fs::read(&path).unwrap();
        let mut file = InPlace::open(&path, true).unwrap();
        let start = file.header().data_start();
        assert!(file.write_all_at(&[3], start).is_err() && file.number().is_none());
        file.begin(7).unwrap();
        assert!(file.write_all_at(&[3], start - 1).is_err());
        file.write_all_at(&[3], start + 1).unwrap();
        let torn = fs::read(&path).unwrap();
        let error = SafeTensors::parse(&torn).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TornData), "{error}");
        assert!(u64::from_le_bytes(torn[..LENGTH_BYTES].try_into().unwrap()) > u64::MAX >> 4);
        drop(file);
        assert!(!is_torn(&path).unwrap());
        for error in [Edit::open(&path).unwrap_err(), restore_header(&path).unwrap_err()] {
            assert!(matches!(error.kind(), ErrorKind::TornData), "{error}");
        }
        let mut file = InPlace::open(&path, true).unwrap();
        assert_eq!((file.number(), file.header().len()), (Some(7), 1));
        file.end().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [&old[..old.len() - 1], &[3]].concat());
        drop(file);

        // A file that was written to since it was opened is another one.
        let mut file = InPlace::open(&path, true).unwrap();
        fs::write(&path, &old).unwrap();
        assert!(file.begin(8).is_err());
        assert_eq!(fs::read(&path).unwrap(), old);
        // A header that says less than the file has.
        fs::write(&path, [&old[..], &[0]].concat()).unwrap();
        drop(file);
        let error = InPlace::open(&path, true).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TrailingData { .. }), "{error}");
    }
}
