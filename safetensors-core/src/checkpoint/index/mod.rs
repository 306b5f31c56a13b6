//! [`Index`]: maps tensors to shards, and is not trusted.

mod json;
mod read;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::names::is_safe;
use crate::checkpoint::store::Store;
use crate::file::io::ReadAt;
use crate::file::io::read_at::read_to_vec;
use crate::format::error::{Error, ErrorKind, IndexProblem, Result};
use crate::format::header::{Limits, Metadata};
use crate::format::other_format::FOREIGN_BASE_KEY;
use json::to_json;
use read::IndexFile;

/// An inverted `weight_map`: each shard has the names of its tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) shards: BTreeMap<String, Vec<String>>,
    /// Not trusted.
    pub(crate) total_size: Option<u64>,
    pub(crate) metadata: Metadata,
    /// Only the package that wrote the shards knows the meaning of their tensors.
    pub(crate) is_foreign: bool,
}

impl Index {
    pub(crate) fn read<T: Store + ?Sized>(store: &T, path: &Path, limits: &Limits) -> Result<Self> {
        let index = Self::read_any(store, path, limits)?;
        if index.is_foreign { Err(index.refused().in_path(path)) } else { Ok(index) }
    }

    pub(super) fn read_foreign<T: Store>(store: &T, path: &Path, limits: &Limits) -> Result<Self> {
        let index = Self::read_any(store, path, limits)?;
        if index.is_foreign {
            Ok(index)
        } else {
            Err(Error::from(ErrorKind::NotADelta).in_path(path))
        }
    }

    // Read as numbers, the tensors of a foreign index would be nonsense.
    pub(super) fn refused(&self) -> Error {
        let base = self.metadata.get(FOREIGN_BASE_KEY).cloned().unwrap_or_default();
        ErrorKind::IsDelta { base }.into()
    }

    pub(super) fn read_any<T: Store + ?Sized>(
        store: &T,
        path: &Path,
        limits: &Limits,
    ) -> Result<Self> {
        let source = store.open(path).map_err(|error| error.in_path(path))?;
        let limit = limits.index_bytes;
        let found = source.byte_len();
        let problem = |problem| bad(problem).in_path(path);
        if found > limit {
            return Err(problem(IndexProblem::TooLarge { limit, found }));
        }
        let json = read_to_vec(&source).map_err(|error| error.in_path(path))?;
        Self::parse(&json, limits).map_err(problem)
    }

    pub(crate) fn parse(json: &[u8], limits: &Limits) -> Result<Self, IndexProblem> {
        let text = std::str::from_utf8(json)
            .map_err(|error| IndexProblem::NotUtf8 { offset: error.valid_up_to() })?;
        let IndexFile { shards, total_size, strings, is_foreign } = IndexFile::parse(text, limits)?;
        // A foreign one may need no tensors.
        if shards.is_empty() && !is_foreign {
            return Err(IndexProblem::Empty);
        }
        match shards.keys().find(|name| !is_safe(name)) {
            Some(name) => Err(IndexProblem::UnsafeName { name: name.clone() }),
            None => Ok(Self { shards, total_size, metadata: strings, is_foreign }),
        }
    }

    pub(super) fn shards(&self) -> impl ExactSizeIterator<Item = (&str, &[String])> {
        self.shards.iter().map(|(file, names)| (file.as_str(), names.as_slice()))
    }

    pub(super) fn paths_next_to(&self, index: &Path) -> Vec<PathBuf> {
        let folder = index.parent().unwrap_or(Path::new(""));
        self.shards().map(|(file, _)| folder.join(file)).collect()
    }

    /// Fails if the default [`Limits`] do not let the index be read again.
    pub(crate) fn check(&self) -> Result<()> {
        self.to_json().map(drop)
    }

    /// Equal indexes give equal bytes.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        self.check_entries(self.shards.values().map(Vec::len).sum())?;
        let weight_map = self
            .shards()
            .flat_map(|(file, names)| names.iter().map(move |name| (name.as_str(), file)));
        let json = to_json(&self.metadata, self.total_size, weight_map)
            .map_err(|error| ErrorKind::Io(io::Error::from(error)))?;
        let (found, limit) = (json.len() as u64, Limits::default().index_bytes);
        if found > limit {
            return Err(bad(IndexProblem::TooLarge { limit, found }));
        }
        Ok(json)
    }

    /// Fails if the default [`Limits`] allow fewer tensors, or fewer entries of metadata.
    pub(crate) fn check_entries(&self, tensors: usize) -> Result<()> {
        let limit = Limits::default().index_entries;
        if tensors.max(self.metadata.len() + 1) > limit {
            return Err(bad(IndexProblem::TooManyEntries { limit }));
        }
        Ok(())
    }
}

fn bad(problem: IndexProblem) -> Error {
    ErrorKind::BadIndex { problem }.into()
}
