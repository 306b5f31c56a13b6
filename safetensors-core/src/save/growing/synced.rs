//! The files of synced steps: their directory, their names, and along which dimension they grow.

use std::fs;
use std::path::{Path, PathBuf};

#[cfg(doc)]
use super::GrowingWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::header::AXIS_PREFIX;
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

/// The dimension along which a tensor of a synced file grows; `None` if it was added whole.
pub(super) fn axis_of(
    file: &SafeTensors<FileSource>,
    tensor: &LazyTensor<'_, FileSource>,
) -> Result<Option<usize>> {
    let name = tensor.name();
    let Some(axis) = file.metadata().get(&format!("{AXIS_PREFIX}{name}")) else { return Ok(None) };
    let ndim = tensor.shape().len();
    match axis.parse() {
        Ok(axis) if axis < ndim => Ok(Some(axis)),
        _ => Err(Error::from(ErrorKind::NoSuchDim { dim: usize::MAX, ndim }).in_tensor(name)),
    }
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
