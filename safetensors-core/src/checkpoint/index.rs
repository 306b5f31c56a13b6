//! [`Index`]: which shard holds which tensor. What is read is hostile until checked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};

use super::index_json::{IndexFile, to_json};
use super::names::is_safe;
use super::store::{Store, read_to_vec};
use crate::error::{Error, ErrorKind, IndexProblem, Result};
use crate::header::Metadata;
use crate::io::ReadAt;

/// The largest index that is read or written, in bytes.
const MAX_BYTES: u64 = 100_000_000;

/// The content of an index file, with the `weight_map` turned round: each shard with the names of
/// its tensors, shards by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) shards: BTreeMap<String, Vec<String>>,
    /// What the index says of the size of all tensors. Not trusted.
    pub(crate) total_size: Option<u64>,
    /// The strings in the index's metadata.
    pub(crate) metadata: Metadata,
}

impl Index {
    /// Reads and checks an index file.
    pub(super) fn read<T: Store>(store: &T, path: &Path) -> Result<Self> {
        let source = store.open(path).map_err(|error| error.in_path(path))?;
        let found = source.byte_len();
        let problem = |problem| Error::from(ErrorKind::BadIndex { problem }).in_path(path);
        if found > MAX_BYTES {
            return Err(problem(IndexProblem::TooLarge { limit: MAX_BYTES, found }));
        }
        let json = read_to_vec(&source).map_err(|error| error.in_path(path))?;
        Self::parse(&json).map_err(problem)
    }

    fn parse(json: &[u8]) -> Result<Self, IndexProblem> {
        let file: IndexFile =
            serde_json::from_slice(json).map_err(|error| IndexProblem::Json(error.to_string()))?;
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in file.weight_map {
            match shards.entry(file) {
                Entry::Occupied(names) => names.into_mut().push(tensor),
                Entry::Vacant(new) if is_safe(new.key()) => {
                    new.insert(vec![tensor]);
                }
                Entry::Vacant(new) => {
                    return Err(IndexProblem::UnsafeName { name: new.into_key() });
                }
            }
        }
        if shards.is_empty() {
            return Err(IndexProblem::Empty);
        }
        Ok(Self { shards, total_size: file.total_size, metadata: file.strings })
    }

    /// Each shard's file name with the names of its tensors, in order of the file names.
    pub(super) fn shards(&self) -> impl ExactSizeIterator<Item = (&str, &[String])> {
        self.shards.iter().map(|(file, names)| (file.as_str(), names.as_slice()))
    }

    /// The paths of the files, in order, of an index at this path.
    pub(super) fn files_beside(&self, index: &Path) -> Vec<PathBuf> {
        let folder = index.parent().unwrap_or(Path::new(""));
        self.shards().map(|(file, _)| folder.join(file)).collect()
    }

    /// The text of the index file. The same index gives the same bytes.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let weight_map = self
            .shards()
            .flat_map(|(file, names)| names.iter().map(move |name| (name.as_str(), file)));
        let json = to_json(&self.metadata, self.total_size, weight_map)
            .map_err(|error| ErrorKind::Io(io::Error::from(error)))?;
        let found = json.len() as u64;
        if found > MAX_BYTES {
            let problem = IndexProblem::TooLarge { limit: MAX_BYTES, found };
            return Err(ErrorKind::BadIndex { problem }.into());
        }
        Ok(json)
    }
}
