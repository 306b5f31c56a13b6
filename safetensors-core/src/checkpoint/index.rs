//! The index file: which shard holds which tensor. Its content is hostile until checked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::source::FileSource;
use crate::{Error, ErrorKind, IndexProblem, ReadAt, Result};

/// The largest index that is read, in bytes.
const MAX_BYTES: u64 = 100_000_000;

/// The `weight_map` of an index, turned round: each shard with the names of its tensors, shards by name.
#[derive(Debug)]
pub(super) struct WeightMap {
    shards: BTreeMap<String, Vec<String>>,
}

impl WeightMap {
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
        let index: IndexFile = serde_json::from_slice(json).map_err(|error| IndexProblem::Json(error.to_string()))?;
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in index.weight_map.0 {
            match shards.entry(file) {
                Entry::Occupied(names) => names.into_mut().push(tensor),
                Entry::Vacant(new) if is_safe_name(new.key()) => {
                    new.insert(vec![tensor]);
                }
                Entry::Vacant(new) => return Err(IndexProblem::UnsafeName { name: new.into_key() }),
            }
        }
        if shards.is_empty() { Err(IndexProblem::Empty) } else { Ok(Self { shards }) }
    }

    /// The shards' file names, in order.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.shards.keys().map(String::as_str)
    }

    /// Each shard's file name with the names of its tensors.
    pub(super) fn shards(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.shards.iter().map(|(file, names)| (file.as_str(), names.as_slice()))
    }
}

/// Whether a shard's file name stays below the index's folder on every system, and is that of a safetensors file.
///
/// `\` and `:` are refused everywhere: on Windows they would be a separator and a drive or stream.
fn is_safe_name(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.ends_with(".safetensors") && !name.contains(['\\', ':', '\0']) && name.split('/').all(plain)
}

/// The form of an index file. Everything but `weight_map` is read over.
#[derive(Debug)]
struct IndexFile {
    weight_map: UniqueMap,
}

impl<'de> Deserialize<'de> for IndexFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = IndexFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexFile, A::Error> {
                let mut seen = std::collections::BTreeSet::new();
                let mut weight_map = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "weight_map" {
                        weight_map = Some(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                    if let Some(key) = seen.replace(key) {
                        return Err(A::Error::custom(format_args!("the key {key:?} stands twice")));
                    }
                }
                let weight_map = weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))?;
                Ok(IndexFile { weight_map })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A map of strings to strings that refuses a key that stands twice.
#[derive(Debug)]
struct UniqueMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = UniqueMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a weight_map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    match pairs.entry(tensor) {
                        Entry::Occupied(twice) => {
                            let tensor = twice.key();
                            return Err(A::Error::custom(format_args!("{tensor:?} stands twice in weight_map")));
                        }
                        Entry::Vacant(new) => {
                            new.insert(file);
                        }
                    }
                }
                Ok(UniqueMap(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}
