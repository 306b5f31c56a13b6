//! The manifest of an epoch: which files it has, and how to tell that they are complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use safetensors_core::digest::Digest;
use safetensors_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{EpochError, RecordKind};

/// The name of the manifest in the directory of an epoch.
pub(super) const NAME: &str = "manifest.json";

const FORMAT: &str = "safetensors-bridge epoch";

const VERSION: u32 = 1;

/// A manifest is far shorter than this.
const MOST_BYTES: u64 = 1 << 20;

/// The longest header that core reads and writes.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// The files of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    epoch: usize,
    pub(super) files: BTreeMap<String, EpochFile>,
}

/// What every version of the manifest has.
#[derive(Deserialize)]
struct Outline {
    format: String,
    version: u32,
}

/// A file of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EpochFile {
    /// Its length.
    pub(super) bytes: u64,
    /// The number of its tensors.
    pub(super) tensors: usize,
    /// The XXH3-128 of its header, which has the digests of all its tensors.
    header_xxh3_128: String,
}

impl EpochFile {
    /// Describes a file that was just saved.
    pub(super) fn of(path: &Path, tensors: usize) -> Result<Self> {
        let describe = || {
            let mut file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok(Self { bytes, tensors, header_xxh3_128: header_digest(&mut file)?.to_string() })
        };
        describe().map_err(|error| in_file(error, path))
    }

    /// Opens a file, and checks its length and its header.
    ///
    /// # Errors
    ///
    /// [`EpochError::Length`], [`EpochError::Header`], [`ErrorKind::Io`]; each names the file.
    pub(super) fn open(&self, path: &Path) -> Result<File> {
        let check = || {
            let mut file = open(path)?;
            let found = file.metadata().map_err(ErrorKind::Io)?.len();
            if found != self.bytes {
                return Err(EpochError::Length { expected: self.bytes, found }.into());
            }
            let found = header_digest(&mut file).map_err(ErrorKind::Io)?.to_string();
            if found != self.header_xxh3_128 {
                let expected = self.header_xxh3_128.clone();
                return Err(EpochError::Header { expected, found }.into());
            }
            Ok(file)
        };
        check().map_err(|error: Error| error.in_path(path))
    }
}

/// The XXH3-128 of the header of a file, with its length before it.
fn header_digest(file: &mut File) -> io::Result<Digest> {
    let mut header = [0; 8].to_vec();
    file.read_exact(&mut header)?;
    // Only the header: the length of the file and the header's digest show an incomplete file at
    // once, and `verify` reads the rest.
    let len = header.iter().rev().fold(0, |len: u64, byte| len << 8 | u64::from(*byte));
    // A wrong length gives a wrong digest.
    file.take(len.min(MOST_HEADER_BYTES)).read_to_end(&mut header)?;
    Ok(Digest::of(&header))
}

impl Manifest {
    pub(super) fn new(epoch: usize, files: BTreeMap<String, EpochFile>) -> Self {
        Self { format: FORMAT.into(), version: VERSION, epoch, files }
    }

    /// Writes the manifest into the directory of the epoch, which is not in place yet.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(NAME);
        let write = || fs::write(&path, serde_json::to_string_pretty(self)? + "\n");
        write().map_err(|error| in_file(error, &path))
    }

    /// Reads the manifest of an epoch. Also returns its digest, which differs for epochs of other
    /// content.
    ///
    /// # Errors
    ///
    /// [`EpochError::NoManifest`], [`EpochError::BadManifest`], [`EpochError::Version`],
    /// [`EpochError::OtherEpoch`], [`EpochError::NoRecord`], [`ErrorKind::Io`]; each names the
    /// directory or the manifest.
    pub(super) fn read(directory: &Path, epoch: usize) -> Result<(Self, Digest)> {
        let path = directory.join(NAME);
        let file = open(&path).map_err(|error| match error.kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                Error::from(EpochError::NoManifest { manifest: NAME }).in_path(directory)
            }
            _ => error.in_path(&path),
        })?;
        let mut text = Vec::new();
        let read = file.take(MOST_BYTES).read_to_end(&mut text);
        read.map_err(|error| in_file(error, &path))?;
        let manifest = Self::parse(&text, epoch).map_err(|error| error.in_path(&path))?;
        Ok((manifest, Digest::of(&text)))
    }

    fn parse(text: &[u8], epoch: usize) -> Result<Self> {
        let bad = |problem: String| Error::from(EpochError::BadManifest { problem });
        // First what every version has, so that a newer manifest is said to be newer, not
        // malformed.
        let outline: Outline =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let (format, version) = (&*outline.format, outline.version);
        if format != FORMAT {
            return Err(bad(format!("expected the format {FORMAT:?}, found {format:?}")));
        }
        if version != VERSION {
            return Err(EpochError::Version { expected: VERSION, found: version }.into());
        }
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        // A name with a separator would lead out of the directory.
        let is_name = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
        if let Some(name) = manifest.files.keys().find(is_name) {
            return Err(bad(format!("expected the name of a file, found {name:?}")));
        }
        if manifest.epoch != epoch {
            return Err(EpochError::OtherEpoch { expected: epoch, found: manifest.epoch }.into());
        }
        let is_missing = |part: &RecordKind| !manifest.files.contains_key(part.file_name());
        match RecordKind::ALL.into_iter().find(is_missing) {
            Some(part) => Err(manifest.no_record(part)),
            None => Ok(manifest),
        }
    }

    /// The error for an epoch without this record.
    pub(super) fn no_record(&self, part: RecordKind) -> Error {
        let found = self.files.keys().cloned().collect();
        EpochError::NoRecord { name: part.file_name().into(), found }.into()
    }

    /// Opens all files, and checks their lengths and headers. So the files that are checked are
    /// those that are read, even if others take their places.
    ///
    /// # Errors
    ///
    /// The errors of [`EpochFile::open`].
    pub(super) fn open(&self, directory: &Path) -> Result<BTreeMap<&str, File>> {
        let files = self.files.iter();
        files.map(|(name, entry)| Ok((&**name, entry.open(&directory.join(name))?))).collect()
    }
}

/// Opens a regular file. Opening something else, such as a FIFO, could wait for ever.
fn open(path: &Path) -> Result<File> {
    let metadata = fs::metadata(path).map_err(ErrorKind::Io)?;
    // Opening a FIFO would wait for a writer.
    if !metadata.is_file() {
        let found = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(ErrorKind::NotAFile { found }.into());
    }
    Ok(File::open(path).map_err(ErrorKind::Io)?)
}

fn in_file(error: io::Error, path: &Path) -> Error {
    Error::from(ErrorKind::Io(error)).in_path(path)
}
