//! Checking a directory before the files of a checkpoint are saved to it.

use std::io;
use std::path::Path;

use super::names::STANDARD_FILE;
use super::store::{FileKind, LocalStore, Store};
use super::{CheckpointPath, FilePattern};
use crate::error::{Error, ErrorKind, Result};
use crate::save::atomic::refuse_other_than_directory;

/// Checks whether these files of the pattern can be saved to a directory, as far as that is known
/// beforehand.
///
/// A checkpoint of one file has no index. Opening the directory finds that file only if it is
/// `model.safetensors`, or if the directory has no other file of tensors and no other index.
pub(crate) fn check(directory: &Path, pattern: &FilePattern, files: &[&str]) -> Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    // A missing directory will be created in its nearest ancestor that exists.
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

/// Fails if a new file cannot replace what is at the path: a directory or a special file.
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
