//! Copies what lies beside a base into the directory of the result.

use std::collections::HashSet;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use safetensors_core::framework::is_temporary_name;
use safetensors_core::{Checkpoint, ErrorKind, ReadAt};

use crate::error::{Error, Result};

/// Copies what lies in the directory of a base on the disk, but for the base's own files (`own`,
/// relative to it) and the hidden files of saves: to `to`, which will be `destination`.
///
/// A base that lies elsewhere has no such directory. One that was opened by the name of its file
/// has neighbours of which nothing is known.
pub(crate) fn copy_beside<B: ReadAt>(
    base: &Checkpoint<B>,
    own: &[PathBuf],
    to: &Path,
    destination: &Path,
) -> Result<()> {
    let first = base.files().first().map(|file| file.path());
    let Some(directory) = base.index_path().or(first).and_then(Path::parent) else {
        return Ok(());
    };
    if !base.is_of_directory() || !directory.is_dir() {
        return Ok(());
    }
    let index = base.index_path().and_then(Path::file_name).map(PathBuf::from);
    let own = own.iter().cloned().chain(index).collect();
    let from = directory.to_owned();
    Copying { from, to: to.to_owned(), own, destination: destination.canonicalize().ok() }
        .directory(Path::new(""))
}

struct Copying {
    from: PathBuf,
    to: PathBuf,
    own: HashSet<PathBuf>,
    /// The directory that is replaced, if there is one.
    destination: Option<PathBuf>,
}

impl Copying {
    /// Copies what is in a directory, whose path is relative to both.
    fn directory(&self, path: &Path) -> Result<()> {
        let from = self.from.join(path);
        for entry in fs::read_dir(&from).map_err(|error| Error::from(error).in_path(&from))? {
            let copied = entry.map_err(Error::from).and_then(|entry| self.entry(path, &entry));
            copied.map_err(|error| error.in_path(&from))?;
        }
        Ok(())
    }

    fn entry(&self, directory: &Path, entry: &DirEntry) -> Result<()> {
        let (name, from) = (directory.join(entry.file_name()), entry.path());
        if self.own.contains(&name) || is_temporary_name(&entry.file_name()) {
            return Ok(());
        }
        let to = self.to.join(&name);
        // Links to files are followed: the Hub's cache has such. One to a directory may lead back.
        let kind = fs::metadata(&from).map_err(|error| Error::from(error).in_path(&from))?;
        if kind.is_file() {
            let copied = fs::copy(&from, &to).map(drop);
            copied.map_err(|error| Error::from(error).in_path(&from))
        } else if kind.is_dir() && !entry.file_type()?.is_symlink() {
            if self.destination.is_some() && from.canonicalize().ok() == self.destination {
                return Ok(());
            }
            fs::create_dir_all(&to).map_err(|error| Error::from(error).in_path(&to))?;
            self.directory(&name)
        } else {
            let found = "a special file, or a link to a directory";
            Err(Error::from(ErrorKind::NotAFile { found }).in_path(&from))
        }
    }
}
