//! The files of synced steps: their directory, their names, and along which dimension they grow.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

#[cfg(doc)]
use super::GrowingWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::header::{AXIS_PREFIX, CONTINUES_KEY};
use crate::io::{FileSource, SafeTensors};
use crate::load::LazyTensor;

/// How the names of synced files end.
const SUFFIX: &str = ".safetensors";

/// The directory in which a [`GrowingWriter`] of a path [syncs](GrowingWriter::sync): that path
/// with `.synced` at its end.
pub fn synced_directory(path: impl AsRef<Path>) -> PathBuf {
    let mut directory = path.as_ref().as_os_str().to_owned();
    directory.push(".synced");
    directory.into()
}

/// The name of a synced file, counted from 1.
pub(super) fn file_name(number: u32) -> String {
    format!("{number:08}{SUFFIX}")
}

/// How a tensor of a synced file grows. Its text is the value in the metadata.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    /// The dimension along which it grows.
    pub(super) axis: usize,
    /// The number of steps that it had in the file that is appended to.
    pub(super) kept: u64,
}

impl Growth {
    /// Of a tensor; `None` if it was added whole.
    pub(super) fn of(
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

/// Whether a metadata key says how the steps of a synced file belong to others. No finished file
/// has such a key.
pub(super) fn is_of_steps(key: &str) -> bool {
    key.starts_with(AXIS_PREFIX) || key == CONTINUES_KEY
}

/// Whether the steps in a directory continue those of a finished file.
pub(super) fn continues(directory: &Path) -> Result<bool> {
    let first = directory.join(file_name(1));
    match FileSource::open(&first).and_then(SafeTensors::from_source) {
        Ok(file) => Ok(file.metadata().contains_key(CONTINUES_KEY)),
        // What is missing is reported by those who need it.
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error.in_path(&first)),
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The number of the last file; `None` if there is no file.
pub(super) fn last_file(directory: &Path) -> Result<Option<u32>> {
    let failed = |error| Error::io(error, directory);
    let mut last = None;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        last = last.max(number.filter(|&number| name == *file_name(number)));
    }
    Ok(last)
}
