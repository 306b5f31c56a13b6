//! [`Published`]: the versions in a publisher's directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::checkpoint::store::{Store, StoreEntry};
use safetensors_core::{Checkpoint, ErrorKind as CoreKind, Limits, ReadAt};
use serde_json::json;

use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{FILE, INDEX, is_decimal};

/// At least six digits follow.
const PREFIX: &str = "weight_v";

pub(crate) const UNFINISHED: &str = ".tmp";

/// Bytes at a file's end in a fingerprint.
const TAIL: u64 = 4096;

pub(crate) struct Root<T> {
    store: Arc<T>,
    path: PathBuf,
}

pub(crate) enum Published<S> {
    Full(Box<Checkpoint<S>>),
    Delta(Box<Delta<S>>),
}

/// Parses a version as slime does.
pub(crate) fn number(version: &str) -> Option<u64> {
    is_decimal(version).then(|| version.parse().ok()).flatten()
}

pub(crate) fn name(number: u64) -> String {
    format!("{number:06}")
}

pub(crate) fn number_of_directory(directory: &str) -> Option<u64> {
    let found = number(directory.strip_prefix(PREFIX)?)?;
    // Another spelling would be a second directory of the same version.
    (format!("{PREFIX}{}", name(found)) == directory).then_some(found)
}

impl<T: Store + 'static> Root<T> {
    pub(crate) fn new(store: T, path: &Path) -> Self {
        Self { store: Arc::new(store), path: path.to_owned() }
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{}", name(number)))
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        match self.store.list(directory) {
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            listed => listed.map_err(|error| error.in_path(directory)),
        }
    }

    /// In descending order, with incomplete ones.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let entries = self.list(&self.path)?;
        // Not by their kind: an entry that a store cannot look at counts as a file.
        let mut numbers: Vec<_> =
            entries.iter().filter_map(|entry| number_of_directory(&entry.name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers.dedup();
        Ok(numbers)
    }

    pub(crate) fn open(&self, number: u64) -> Result<Option<Published<T::File>>> {
        match self.open_listed(number) {
            // A file that the index names is not there yet, or not any more.
            Err(error) if is_missing(&error) => Ok(None),
            opened => opened,
        }
    }

    fn open_listed(&self, number: u64) -> Result<Option<Published<T::File>>> {
        let directory = self.directory(number);
        let entries = self.list(&directory)?;
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        let full = || {
            Checkpoint::open_in(Arc::clone(&self.store), &directory, &Limits::default())
                .and_then(Checkpoint::into_stored)
                .map(Box::new)
        };
        if has(INDEX) {
            let index = directory.join(INDEX);
            return match Delta::open_in(Arc::clone(&self.store), &index, &Limits::default()) {
                Ok(delta) => check_version(Box::new(delta), number).map(Published::Delta).map(Some),
                Err(error) if matches!(error.kind(), CoreKind::NotADelta) => {
                    full().map(Published::Full).map(Some)
                }
                Err(error) => Err(error),
            };
        }
        let is_unfinished = entries.iter().any(|entry| entry.name.ends_with(UNFINISHED));
        // Without an index, another file may be one of several shards, or belong to a delta that is
        // being written.
        if !has(FILE) || is_unfinished {
            return Ok(None);
        }
        let full = full()?;
        // A delta without its index is not counted as one.
        let is_full = !full.files().iter().all(CheckpointFile::looks_foreign);
        Ok(is_full.then_some(Published::Full(full)))
    }

    pub(crate) fn has_changed(&self, versions: &[(u64, String)]) -> bool {
        versions.iter().any(|(number, fingerprint)| {
            let found = self.open(*number).and_then(|published| {
                published.map(|published| published.fingerprint()).transpose()
            });
            // A version that cannot be read now is not known to have changed.
            found.is_ok_and(|found| found.as_ref() != Some(fingerprint))
        })
    }
}

fn check_version<S>(delta: Box<Delta<S>>, expected: u64) -> Result<Box<Delta<S>>> {
    if number(delta.version()) == Some(expected) {
        return Ok(delta);
    }
    let found = delta.version().into();
    let kind = ErrorKind::OtherVersion { expected: name(expected), found };
    Err(Error::from(kind).in_path(delta.path()))
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), CoreKind::Io(error) if error.kind() == io::ErrorKind::NotFound)
}

impl<S: ReadAt> Published<S> {
    pub(crate) fn files(&self) -> &Checkpoint<S> {
        match self {
            Self::Full(checkpoint) => checkpoint,
            Self::Delta(delta) => delta.files(),
        }
    }

    /// Hashes a delta's index, all headers with checksums, and the ends of files.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |value: serde_json::Value| {
            hasher.update(value.to_string().as_bytes());
        };
        if let Self::Delta(delta) = self {
            let digests = delta.digests().map(|digest| digest.map(|it| it.to_hex().to_string()));
            add(json!([delta.version(), delta.base_version(), delta.encoding().name(), digests]));
            delta.extra().entries().for_each(|entry| add(json!(entry)));
        }
        for file in self.files().files() {
            let name = file.path().file_name();
            let archive = file.safetensors();
            add(json!([name.map(|name| name.to_string_lossy()), archive.metadata()]));
            for tensor in archive.header().iter() {
                let end = tensor.data_offsets().end;
                add(json!([tensor.name(), tensor.dtype().name(), tensor.shape(), end]));
            }
            let source = archive.source();
            // A full version has no checksums in its header, and reading all of it at each poll
            // would cost as much as a copy. A difference elsewhere is found by the digests of the
            // next delta.
            let len = source.byte_len().min(TAIL);
            let mut tail = vec![0; len as usize];
            let read = source.read_exact_at(&mut tail, source.byte_len() - len);
            read.map_err(|error| Error::from(error).in_path(file.path()))?;
            add(json!(blake3::hash(&tail).to_hex().as_str()));
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}
