//! [`Zipped`]: a zip archive, with members read one at a time.
//!
//! It may be hostile. [`Limits`] bounds the list of members. A member is unpacked as a stream,
//! never to more than it claims, which can be [checked](Zipped::check_size).

use std::io::Read;
use std::sync::Arc;

use zip::read::ZipFile;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::Limits;
use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{Cursor, Input};
use crate::polyglot;

/// Of a deflated byte: a match of 258 bytes takes two bits.
const MOST_INFLATED: u64 = 1032;

#[derive(Debug)]
pub(crate) struct Zipped<'a> {
    zip: ZipArchive<Cursor<'a>>,
    pub(crate) input: Arc<Input<'a>>,
}

/// The start of a tensor's or storage's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    At(u64),
    Unpacked {
        member: usize,
        skipped: u64,
    },
    /// In memory: few bytes, or in another form in the file.
    Held(Arc<[u8]>),
}

impl Place {
    pub(crate) fn after(self, bytes: u64) -> Self {
        match self {
            Self::At(start) => Self::At(start + bytes),
            Self::Unpacked { member, skipped } => {
                Self::Unpacked { member, skipped: skipped + bytes }
            }
            // A tensor in memory begins with its first byte.
            Self::Held(_) => self,
        }
    }
}

impl<'a> Zipped<'a> {
    pub(crate) fn open(input: Input<'a>, limits: &Limits) -> Result<Self> {
        let input = Arc::new(input);
        let opened = Self::list(&input, limits);
        let zip = opened.map_err(|error| error.in_file(&input.file))?;
        input.check_unchanged()?;
        Ok(Self { zip, input })
    }

    fn list(input: &Arc<Input<'a>>, limits: &Limits) -> Result<ZipArchive<Cursor<'a>>> {
        let limit = limits.directory_bytes;
        input.allow(limit);
        let listed = ZipArchive::new(Cursor { input: Arc::clone(input), at: 0 });
        if listed.is_err() && input.is_exhausted() {
            return Err(ErrorKind::DirectoryTooLong { limit }.into());
        }
        input.allow(u64::MAX);
        let zip = listed.map_err(|error| match error {
            // So the crate says that the end is not there, or not whole.
            ZipError::InvalidArchive(problem)
                if problem == "Could not find EOCD" || problem.starts_with("Unexpected end of") =>
            {
                let len = input.source.byte_len();
                let kind = polyglot::looks_like(&*input.source, 0).unwrap_or_default();
                let problem = format!(
                    "truncated after {len} bytes, before the list of members at the end of {kind}"
                );
                ErrorKind::BadArchive { problem }.into()
            }
            other => failed(other),
        })?;
        let limit = limits.members;
        let found = zip.len();
        if found > limit {
            return Err(ErrorKind::TooManyMembers { limit, found }.into());
        }
        if zip.has_duplicate_names() {
            return Err(ErrorKind::DuplicateMember.into());
        }
        let starts = (0..found).map(|index| Ok(zip.by_index_data(index)?.header_start()));
        let starts = starts.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let begin = starts.into_iter().min().unwrap_or(0);
        polyglot::check_archive(&*input.source, begin, zip.central_directory_start())?;
        Ok(zip)
    }

    /// It takes several times its bytes in memory.
    pub(crate) fn count_list(&self, budget: &Budget) -> Result<()> {
        let len = self.input.source.byte_len().saturating_sub(self.zip.central_directory_start());
        budget.keep_all::<u64>(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// In order. A folder ends in `/`.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let names = self.zip.file_names().map(|name| Ok(name.map_err(failed)?.into_owned()));
        names.collect::<Result<_>>().map_err(|error| error.in_file(&self.input.file))
    }

    /// Unpacks a member for `read`. Errors do not name the archive yet.
    pub(crate) fn member<T>(
        &self,
        index: usize,
        read: impl FnOnce(&mut ZipFile<'_, Cursor<'a>>) -> Result<T>,
    ) -> Result<T> {
        let mut zip = self.zip.clone();
        let mut member = zip.by_index(index).map_err(failed)?;
        read(&mut member)
    }

    pub(crate) fn place(&self, index: usize) -> Result<Place> {
        self.member(index, |member| {
            Ok(match (member.compression(), member.data_start()) {
                (CompressionMethod::Stored, Some(start)) => Place::At(start),
                _ => Place::Unpacked { member: index, skipped: 0 },
            })
        })
    }

    pub(crate) fn verify_checksums(&self) -> Result<u64> {
        let names = self.names()?;
        for (index, name) in names.iter().enumerate() {
            let read = self.check_size(index).and_then(|()| {
                self.member(index, |member| Ok(std::io::copy(member, &mut std::io::sink())?))
            });
            let located = |error: Error| error.in_file(&self.input.file).in_tensor(name);
            read.map_err(located)?;
        }
        self.input.check_unchanged()?;
        Ok(names.len() as u64)
    }

    /// Members must not share bytes, or reach past the end.
    pub(crate) fn check_overlap(&self) -> Result<()> {
        if self.zip.clone().has_overlapping_entries().map_err(failed)? {
            Err(ErrorKind::Overlap.into())
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_size(&self, index: usize) -> Result<()> {
        let member = self.zip.by_index_data(index).map_err(failed)?;
        let stored = member.compressed_size();
        let found = member.size();
        let available = stored.min(self.input.source.byte_len());
        let most = match member.compression() {
            CompressionMethod::Stored => available,
            _ => available.saturating_add(1).saturating_mul(MOST_INFLATED),
        };
        if found > most {
            return Err(ErrorKind::ImpossibleSize { stored: available, most, found }.into());
        }
        Ok(())
    }
}

/// Compares the checksum at the end.
pub(crate) fn expect_end(member: &mut dyn Read) -> Result<()> {
    match member.read(&mut [0])? {
        0 => Ok(()),
        _ => {
            Err(ErrorKind::BadArchive { problem: "the member is longer than it says".into() }
                .into())
        }
    }
}

pub(crate) fn failed(error: ZipError) -> Error {
    match error {
        ZipError::Io(error) => error.into(),
        other => ErrorKind::BadArchive { problem: other.to_string() }.into(),
    }
}
