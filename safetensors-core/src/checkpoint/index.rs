//! [`Index`]: which shard holds which tensor. What is read is hostile until checked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::Path;

use super::index_json::{IndexFile, to_json};
use super::locate::FILE_SUFFIX;
use crate::error::{Error, ErrorKind, IndexProblem, Result};
use crate::header::Metadata;
use crate::io::{FileSource, ReadAt};

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
    pub(super) fn read(path: &Path) -> Result<Self> {
        let source = FileSource::open(path)?;
        let found = source.byte_len();
        let problem = |problem| Error::from(ErrorKind::BadIndex { problem }).in_path(path);
        if found > MAX_BYTES {
            return Err(problem(IndexProblem::TooLarge { limit: MAX_BYTES, found }));
        }
        Self::parse(&source.read_to_vec()?).map_err(problem)
    }

    fn parse(json: &[u8]) -> Result<Self, IndexProblem> {
        let file: IndexFile =
            serde_json::from_slice(json).map_err(|error| IndexProblem::Json(error.to_string()))?;
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in file.weight_map {
            match shards.entry(file) {
                Entry::Occupied(names) => names.into_mut().push(tensor),
                Entry::Vacant(new) if is_safe_name(new.key()) => {
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

    /// The text of the index file. The same index gives the same bytes.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let json = to_json(self).map_err(|error| ErrorKind::Io(io::Error::from(error)))?;
        let found = json.len() as u64;
        if found > MAX_BYTES {
            let problem = IndexProblem::TooLarge { limit: MAX_BYTES, found };
            return Err(ErrorKind::BadIndex { problem }.into());
        }
        Ok(json)
    }
}

/// Whether a shard's file name stays below the index's folder on every system, and is that of a
/// safetensors file.
///
/// `\` and `:` are refused everywhere: on Windows they would be a separator and a drive or stream.
pub(super) fn is_safe_name(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.ends_with(FILE_SUFFIX) && !name.contains(['\\', ':', '\0']) && name.split('/').all(plain)
}
