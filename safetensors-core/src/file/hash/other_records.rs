//! Records in other files, and notes about records.

use std::fmt;
use std::fs;
use std::io::ErrorKind::{NotFound, PermissionDenied, UnexpectedEof};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Digest;
use super::table::{Change, Fate, MANIFEST, Place, RECORDS, signed_name};
use crate::file::io::hidden::directory;
use crate::file::io::{FileSource, next_to};
use crate::format::error::{Error, ErrorKind, Result};

/// The places of manifests, from a file's directory.
const LEVELS: [&str; 3] = ["", "..", "../.."];

const MOST_BYTES: u64 = 1 << 20;

/// A side effect of a change, to print.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum Note {
    /// A digest of data that changes is removed from the metadata.
    Removed {
        /// Its key.
        key: &'static str,
    },
    /// This signature may be of the previous content.
    Signature {
        /// Its path.
        path: PathBuf,
    },
    /// The file is replaced instead of changed in place, because other names (hard links) keep the
    /// old content.
    SeveralNames {
        /// The number of names.
        names: u64,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed { key } => {
                write!(f, "{key} is removed: it is a digest of data that changes")
            }
            Self::Signature { path } => {
                let name = path.file_name().unwrap_or(path.as_os_str()).display();
                write!(f, "the signature {name} no longer holds if it covers this file: sign again")
            }
            Self::SeveralNames { names } => {
                write!(
                    f,
                    "has {names} names; it is written as a new file, and the others keep the old one"
                )
            }
        }
    }
}

/// Fails if a record in another file forbids a change. `destination` is the path after links.
// Without manifests this looks for three files, and reads nothing.
pub(crate) fn check_records(path: &Path, destination: &Path, change: Change) -> Result<()> {
    if !has_fate(Place::Manifest, change, Fate::Refused) {
        return Ok(());
    }
    let mut digest = None;
    let paths = [Some(path), Some(destination).filter(|destination| *destination != path)];
    for (path, level) in
        paths.into_iter().flatten().flat_map(|path| LEVELS.map(|level| (path, level)))
    {
        let home = directory(path).join(level);
        let Some(text) = read(&home)? else { continue };
        let digest = match &digest {
            Some(digest) => digest,
            None => match header_digest(path)? {
                Some(found) => digest.insert(found.to_string()),
                None => return Ok(()),
            },
        };
        if String::from_utf8_lossy(&text).contains(&**digest) {
            let manifest = home.join(MANIFEST);
            return Err(ErrorKind::InManifest { manifest }.into());
        }
    }
    Ok(())
}

/// Returns signatures of this name, or of no other file in the directory.
pub(crate) fn signatures(path: &Path, change: Change) -> Vec<Note> {
    if !has_fate(Place::Signature, change, Fate::Doubtful) {
        return Vec::new();
    }
    let entries = fs::read_dir(directory(path)).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.retain(|signature| {
        let name = signature.file_name().unwrap_or_default().to_string_lossy();
        let Some(signed) = signed_name(&name) else { return false };
        path.file_name().is_some_and(|name| name == signed)
            || signature.with_file_name(signed).symlink_metadata().is_err()
    });
    found.sort_unstable();
    found.into_iter().map(|path| Note::Signature { path }).collect()
}

fn has_fate(place: Place, change: Change, fate: Fate) -> bool {
    RECORDS.iter().any(|record| record.0 == place && record.fate(change) == fate)
}

/// Returns `None` if this user can see no manifest.
fn read(home: &Path) -> Result<Option<Vec<u8>>> {
    let file = match next_to::open(home, MANIFEST) {
        Err(error) if is_unseen(error.kind()) => None,
        opened => opened?,
    };
    let Some(file) = file else { return Ok(None) };
    let mut text = Vec::new();
    let read = file.file().take(MOST_BYTES).read_to_end(&mut text);
    read.map(|_| Some(text)).map_err(|error| Error::io(error, &home.join(MANIFEST)))
}

fn is_unseen(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Io(error) => error.kind() == PermissionDenied,
        kind => matches!(kind, ErrorKind::NotAFile { .. }),
    }
}

/// Returns `None` if there is no header.
fn header_digest(path: &Path) -> Result<Option<Digest>> {
    let digest = FileSource::open_now(path).map_err(Error::through_io);
    match digest.and_then(|file| Digest::of_header(file.file())) {
        Err(error) if matches!(error.kind(), NotFound | UnexpectedEof) => Ok(None),
        digest => digest.map(Some).map_err(|error| ErrorKind::Io(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn a_header_is_read_only_if_there_is_a_manifest() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a/b/model.safetensors");
        fs::create_dir_all(&path).unwrap();
        check_records(&path, &path, Change::File).unwrap();
        fs::write(dir.path().join(MANIFEST), "{}").unwrap();
        check_records(&path, &path, Change::File).unwrap_err();
    }
}
