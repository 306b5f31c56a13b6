//! Small files next to a checkpoint: settings, manifests, tokenizers. A stranger may have made them.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::file::FileSource;
use crate::error::{Error, ErrorKind, Result};

/// Finds a file below a directory and returns the path to open; `None` if there is none.
///
/// Links are followed if they stay below the directory. In a snapshot of the Hub's cache they may
/// also lead to a blob.
///
/// # Errors
///
/// [`ErrorKind::NotAFile`] for a name or a link that leads out of the directory; [`ErrorKind::Io`].
pub fn find(home: &Path, name: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    let name = name.as_ref();
    let path = home.join(name);
    let leads_out = |found| Err(Error::from(ErrorKind::NotAFile { found }).in_path(&path));
    let mut has_link = false;
    let mut at = home.to_owned();
    for component in name.components() {
        match component {
            Component::Normal(part) => at.push(part),
            Component::CurDir => continue,
            _ => return leads_out("a path that leads out of its directory"),
        }
        match fs::symlink_metadata(&at) {
            Ok(found) => has_link |= found.is_symlink(),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(Error::io(error, &path)),
        }
    }
    if !has_link {
        return Ok(Some(path));
    }
    let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
    let real = home.canonicalize().and_then(|home| Ok((home, path.canonicalize()?)));
    match real {
        Ok((home, target)) if target.starts_with(&home) || is_blob(&home, &target) => {
            Ok(Some(target))
        }
        Ok(_) => leads_out("a link that leads out of its directory; put a copy there"),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Error::io(error, &path)),
    }
}

/// Opens a file below a directory, as [`find`] finds it; `None` if there is none.
///
/// # Errors
///
/// [`ErrorKind::NotAFile`] for anything but a regular file; the errors of [`find`].
pub fn open(home: &Path, name: impl AsRef<Path>) -> Result<Option<FileSource>> {
    let name = name.as_ref();
    let Some(path) = find(home, name)? else { return Ok(None) };
    match FileSource::open_now(&path) {
        // It was removed since.
        Err(error) if matches!(error.kind(), ErrorKind::Io(error) if is_absent(error)) => Ok(None),
        opened => opened.map(Some).map_err(|error| error.moved(&path, &home.join(name))),
    }
}

/// Reads a file of at most `most` bytes below a directory; `None` if there is none.
///
/// # Errors
///
/// [`ErrorKind::Io`], also for a larger file; the errors of [`open`].
pub fn read(home: &Path, name: impl AsRef<Path>, most: u64) -> Result<Option<Vec<u8>>> {
    let name = name.as_ref();
    let Some(file) = open(home, name)? else { return Ok(None) };
    read_open(&file, &home.join(name), most).map(Some)
}

/// Reads a regular file of at most `most` bytes, wherever it is and wherever links lead.
///
/// # Errors
///
/// [`ErrorKind::NotAFile`] for anything but a regular file; [`ErrorKind::Io`], also for a larger
/// file.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_open(&FileSource::open_now(path)?, path, most)
}

fn read_open(file: &FileSource, path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The length that the system reports may be wrong, or change.
    let read = file.file().take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(error, path))?;
    if bytes.len() as u64 <= most {
        return Ok(bytes);
    }
    let found = file.file().metadata().map_or(0, |found| found.len()).max(bytes.len() as u64);
    let problem = format!("expected at most {most} bytes, found {found}");
    Err(Error::io(io::Error::other(problem), path))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns `true` if `home` is in a snapshot of the Hub's cache, and the target is one of its
/// repository's blobs. Newer caches keep blobs of all repositories in one place.
fn is_blob(home: &Path, target: &Path) -> bool {
    let snapshots = home.ancestors().find(|it| it.ends_with("snapshots"));
    let repository = snapshots.and_then(Path::parent);
    let is_below = |it: &Path| it.join("blobs").is_dir() && target.starts_with(it.join("blobs"));
    repository.is_some_and(|it| it.join("blobs").is_dir() && it.ancestors().take(2).any(is_below))
}
