//! [`LocalStore`]: the files of the local disk.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{CopyFile, FileKind, Store, StoreEntry, Version};
use crate::file::io::identity::{Identity, unless_missing};
use crate::file::io::names::refuse_impossible;
use crate::file::io::{FileSource, ReadAt, failpoint};
use crate::file::save::atomic::sync;
use crate::format::error::{Error, ErrorKind, Result};

/// The files of the local disk, as [`Checkpoint::open`](crate::Checkpoint::open) opens them. Links
/// are followed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalStore;

impl Store for LocalStore {
    type File = FileSource;

    fn open(&self, path: &Path) -> Result<FileSource> {
        FileSource::open(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        let found = unless_missing(refuse_impossible(path).and_then(|()| fs::metadata(path)));
        Ok(found.map_err(|error| Error::io(error, path))?.map(|found| kind(found.is_dir())))
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        list(directory).map_err(|error| Error::io(error, directory))
    }

    /// The identity, the length and the time of the last write.
    fn version(&self, path: &Path) -> Result<Option<Version>> {
        let source = match FileSource::open(path) {
            Ok(source) => source,
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = version(source.file()).map_err(|error| Error::io(error, path))?;
        Ok(Some(Version { text, _held: Some(Arc::new(source)) }))
    }
}

impl LocalStore {
    pub(crate) fn write(path: &Path, copy: &CopyFile<'_>, durable: bool) -> Result<()> {
        failpoint::hit("copy")?;
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = File::create(path)?;
        let permissions = copy(&mut file)?;
        if durable {
            sync(&file)?;
        }
        Ok(permissions.map_or(Ok(()), |found| file.set_permissions(found))?)
    }
}

fn kind(is_directory: bool) -> FileKind {
    if is_directory { FileKind::Directory } else { FileKind::File }
}

fn version(file: &File) -> io::Result<String> {
    let metadata = file.metadata()?;
    Ok(format!("{:?} {} {:?}", Identity::read(file)?, metadata.len(), metadata.modified()))
}

pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The files need not be on the local disk.
pub(crate) struct OpenedBy<F>(pub(in crate::checkpoint) F);

impl<S: ReadAt, F: Fn(&Path) -> Result<S> + Send + Sync> Store for OpenedBy<F> {
    type File = S;

    fn open(&self, path: &Path) -> Result<S> {
        (self.0)(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        match LocalStore.list(directory) {
            Err(error) if is_not_found(&error) => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        // A path outside the disk has no version.
        match LocalStore.kind(path) {
            Ok(Some(_)) => LocalStore.version(path),
            Ok(None) | Err(_) => Ok(None),
        }
    }
}

fn list(directory: &Path) -> io::Result<Vec<StoreEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = match entry.file_type() {
            // The listing has the type. Of 100,000 files, none is looked up.
            Ok(found) if !found.is_symlink() => kind(found.is_dir()),
            // A dangling link, or a file that was removed in between, counts as a file.
            _ => kind(fs::metadata(entry.path()).is_ok_and(|found| found.is_dir())),
        };
        entries.push(StoreEntry { name, kind });
    }
    Ok(entries)
}
