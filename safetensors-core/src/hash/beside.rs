//! Records of a file that are in files beside it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::table::{Change, Fate, MANIFEST, Place, RECORDS, signed_name};
use super::{Digest, Hasher};
use crate::error::{Error, ErrorKind, Result};
use crate::header::{LENGTH_BYTES, Limits};
use crate::io::hidden::directory;

/// Where manifests are, from the directory of a file.
const LEVELS: [&str; 3] = ["", "..", "../.."];

/// Longer manifests are not read.
const MOST_BYTES: u64 = 1 << 20;

/// What a change of a file does besides, and its caller may want to print.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// This entry of the metadata is removed, because it is a digest of data that changes.
    Removed {
        /// Its key.
        key: &'static str,
    },
    /// This signature may be of the file as it was.
    Signature {
        /// Its path.
        path: PathBuf,
    },
    /// The file is replaced and not changed in place, because it has several names (hard links). The
    /// others keep the old content.
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

/// Fails if a record beside a file would not hold after a change, and the table refuses that. Nothing
/// is written.
///
/// # Errors
///
/// [`ErrorKind::InManifest`]; [`ErrorKind::Io`] if a manifest cannot be read.
pub(crate) fn check_records(path: &Path, change: Change) -> Result<()> {
    if !has_fate(Place::Manifest, change, Fate::Refused) {
        return Ok(());
    }
    let mut digest = None;
    for level in LEVELS {
        let manifest = directory(path).join(level).join(MANIFEST);
        let text = read(&manifest).map_err(|error| Error::io(error, &manifest))?;
        let Some(text) = text else { continue };
        let digest = match &digest {
            Some(digest) => digest,
            None => match header_digest(path).map_err(ErrorKind::Io)? {
                Some(found) => digest.insert(found.to_string()),
                None => return Ok(()),
            },
        };
        if String::from_utf8_lossy(&text).contains(&**digest) {
            return Err(ErrorKind::InManifest { manifest }.into());
        }
    }
    Ok(())
}

/// The signatures in the directory of a file that may be of it: of this name, or of no other file.
pub(crate) fn signatures(path: &Path, change: Change) -> Result<Vec<Note>> {
    if !has_fate(Place::Signature, change, Fate::Doubtful) {
        return Ok(Vec::new());
    }
    let in_directory = |error| Error::io(error, directory(path));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory(path)).map_err(in_directory)? {
        let signature = entry.map_err(in_directory)?.path();
        let name = signature.file_name().unwrap_or_default().to_string_lossy();
        let Some(signed) = signed_name(&name) else { continue };
        let is_own = path.file_name().is_some_and(|name| name == signed);
        if is_own || signature.with_file_name(signed).symlink_metadata().is_err() {
            found.push(signature);
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|path| Note::Signature { path }).collect())
}

fn has_fate(place: Place, change: Change, fate: Fate) -> bool {
    RECORDS.iter().any(|record| record.0 == place && record.fate(change) == fate)
}

/// Reads a manifest; `None` if there is none.
fn read(manifest: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(manifest) {
        Ok(found) if found.is_file() => {}
        // Opening a FIFO would wait for a writer.
        Ok(_) => return Ok(None),
        Err(error) => return unless_missing(error),
    }
    let mut text = Vec::new();
    match File::open(manifest).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) => unless_missing(error),
    }
}

fn unless_missing<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::Unsupported => {
            Ok(None)
        }
        _ => Err(error),
    }
}

/// The XXH3-128 of a header with its length before it; `None` if there is no file, or none that is
/// long enough. The text of an index begins like a length beyond all limits.
fn header_digest(path: &Path) -> io::Result<Option<Digest>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return unless_missing(error),
    };
    let mut length = [0; LENGTH_BYTES];
    match file.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let mut hasher = Hasher::default();
    hasher.update(&length);
    let len = u64::from_le_bytes(length).min(Limits::default().header_bytes);
    let mut text = file.take(len);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match text.read(&mut buffer)? {
            0 => return Ok(Some(hasher.finish())),
            read => hasher.update(&buffer[..read]),
        }
    }
}
