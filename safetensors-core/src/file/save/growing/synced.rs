//! Files of synced steps: their directory, their names, and how tensors grow.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use crate::file::io::hidden::{is_temporary_name, with_suffix};
use crate::file::io::identity::unless_missing;
use crate::file::io::{FileSource, SafeTensors, next_to};
use crate::file::load::LazyTensor;
use crate::file::save::{AtomicFile, SaveOptions};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{AXIS_PREFIX, CONTINUES_KEY};

const SUFFIX: &str = ".safetensors";

const MOST: u64 = 100;

/// Holds the number of synced files.
pub(super) const MARK: &str = "finishing";

pub(super) fn synced_directory(path: &Path) -> PathBuf {
    with_suffix(path, ".synced")
}

/// Returns the name for steps that cannot be recovered.
pub(super) fn incomplete_directory(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".incomplete-{number}"))
}

/// Counts from 1.
pub(super) fn file_name(number: u32) -> String {
    format!("{number:08}{SUFFIX}")
}

/// The growth of a tensor, displayed as in the metadata.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    pub(super) axis: usize,
    /// Steps in the file that is appended to.
    pub(super) kept: u64,
}

impl Growth {
    /// Returns `None` for a tensor that was added whole.
    pub(super) fn read(
        file: &SafeTensors<FileSource>,
        tensor: &LazyTensor<'_, FileSource>,
    ) -> Result<Option<Self>> {
        let name = tensor.name();
        let Some(text) = file.metadata().get(&format!("{AXIS_PREFIX}{name}")) else {
            return Ok(None);
        };
        let ndim = tensor.shape().len();
        let (axis, kept) = text.split_once(' ').unwrap_or((text, "0"));
        match (axis.parse(), kept.parse()) {
            (Ok(axis), Ok(kept)) if axis < ndim => Ok(Some(Self { axis, kept })),
            _ => Err(Error::from(ErrorKind::NoSuchDim { dim: usize::MAX, ndim }).in_tensor(name)),
        }
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept {
            0 => write!(f, "{}", self.axis),
            kept => write!(f, "{} {kept}", self.axis),
        }
    }
}

/// Returns `true` for a key that links synced steps. No finished file has one.
pub(super) fn is_of_steps(key: &str) -> bool {
    key.starts_with(AXIS_PREFIX) || key == CONTINUES_KEY
}

/// Counts from 1.
pub(super) fn open(directory: &Path, number: u32) -> Result<SafeTensors<FileSource>> {
    let path = directory.join(file_name(number));
    let opened = FileSource::open(&path).and_then(SafeTensors::from_source);
    opened.map_err(|error| error.in_path(path))
}

/// Says that a file with these steps is about to be put in place.
pub(super) fn mark(directory: &Path, files: u32, durable: bool) -> Result<()> {
    let path = directory.join(MARK);
    let mut file = AtomicFile::create(&path, &SaveOptions::new().durable(durable))?;
    write!(file, "{files}")?;
    file.commit()
}

/// Returns 0 if the mark is malformed.
fn marked_files(directory: &Path) -> Result<Option<u32>> {
    let mark = next_to::read(directory, MARK, MOST)?;
    Ok(mark.map(|mark| String::from_utf8_lossy(&mark).parse().unwrap_or(0)))
}

#[derive(Debug)]
pub(super) struct Listed {
    /// The number of the last file, or 0.
    pub(super) last: u32,
    count: u32,
    /// The number of files in the mark.
    pub(super) marked: Option<u32>,
    /// Whether something is there that no run writes.
    pub(super) has_others: bool,
}

impl Listed {
    pub(super) fn has_gap(&self) -> bool {
        self.last == 0 || self.count < self.last || self.marked > Some(self.last)
    }
}

/// Returns `None` without a directory.
pub(super) fn list(directory: &Path) -> Result<Option<Listed>> {
    let failed = |error| Error::io(error, directory);
    let entries = unless_missing(fs::read_dir(directory)).map_err(failed)?;
    let Some(entries) = entries else { return Ok(None) };
    let mut listed = Listed { last: 0, count: 0, marked: None, has_others: false };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        match number.filter(|&number| number > 0 && name == *file_name(number)) {
            Some(number) => {
                listed.last = listed.last.max(number);
                listed.count += 1;
            }
            None if name == MARK => listed.marked = marked_files(directory)?,
            None => listed.has_others |= !is_temporary_name(&name),
        }
    }
    Ok(Some(listed))
}
