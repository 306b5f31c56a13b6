//! Whether a directory can have the files of a checkpoint.

use std::io;
use std::path::Path;

use super::names::STANDARD_FILE;
use super::store::{FileKind, LocalStore, Store};
use super::{CheckpointPath, FilePattern};
use crate::error::{Error, ErrorKind, Result};
use crate::save::atomic::refuse_other_than_directory;

/// Checks whether a directory can have these files, which are named after the pattern, as far as
/// that is known beforehand.
///
/// One file has no index. Unless it is `model.safetensors`, it is found only if it is alone: no
/// other file of tensors may be there and no other index.
pub(crate) fn check(directory: &Path, pattern: &FilePattern, files: &[&str]) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    // What is not there yet will be made in the nearest directory above that is.
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())
        .unwrap_or(Path::new("."));
    refuse_other_than_directory(there).map_err(|error| error.in_path(directory))?;
    let index = pattern.index_name();
    for path in files.iter().chain([&index.as_str()]).map(|file| directory.join(file)) {
        refuse_other_than_files(&path).map_err(|error| error.in_path(&path))?;
    }
    let &[file] = files else { return Ok(()) };
    if file != pattern.file_name(0, 1) || file == STANDARD_FILE || there != directory {
        return Ok(());
    }
    let mut others = LocalStore.list(directory)?;
    others.retain(|entry| {
        let name = &entry.name;
        let is_own = name == file || *name == index || pattern.matches(name);
        !is_own && entry.kind == FileKind::File && CheckpointPath::from_name(name).is_some()
    });
    if others.is_empty() {
        return Ok(());
    }
    let mut others: Vec<_> = others.into_iter().map(|entry| entry.name).collect();
    others.sort_unstable();
    Err(Error::from(ErrorKind::NotAlone { file: file.into(), others }).in_path(directory))
}

/// Refuses to take the place of something that is neither a file nor a link.
pub(super) fn refuse_other_than_files(path: &Path) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => "a directory",
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => "a special file",
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ErrorKind::Io(error).into());
        }
        _ => return Ok(()),
    };
    Err(ErrorKind::NotAFile { found }.into())
}
