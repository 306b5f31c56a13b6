//! Reading the text of an index, with limits and without duplicate keys.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::format::error::{Escaped, IndexProblem};
use crate::format::header::{Limits, Metadata, duplicate_key};
use crate::format::other_format::FOREIGN_KEY;

#[derive(Debug, Default)]
pub(super) struct IndexFile {
    pub(super) shards: BTreeMap<String, Vec<String>>,
    pub(super) total_size: Option<u64>,
    pub(super) strings: Metadata,
    pub(super) is_foreign: bool,
}

impl IndexFile {
    pub(super) fn parse(text: &str, limits: &Limits) -> Result<Self, IndexProblem> {
        let most = Most { entries: limits.index_entries, is_exceeded: Cell::new(false) };
        let mut json = serde_json::Deserializer::from_str(text);
        let file = json.deserialize_map(Fields(&most)).and_then(|file| {
            json.end()?;
            Ok(file)
        });
        file.map_err(|error| {
            if most.is_exceeded.get() {
                IndexProblem::TooManyEntries { limit: most.entries }
            } else {
                IndexProblem::Json(Escaped(&error.to_string()).to_string())
            }
        })
    }

    /// Other values than strings and the `total_size` are skipped.
    fn read_metadata(&mut self, json: &RawValue, most: &Most) -> serde_json::Result<()> {
        if !json.get().starts_with('{') {
            return Ok(());
        }
        serde_json::Deserializer::from_str(json.get()).deserialize_map(Strings { file: self, most })
    }
}

struct Most {
    entries: usize,
    is_exceeded: Cell<bool>,
}

impl Most {
    fn check<E: de::Error>(&self, count: usize) -> Result<(), E> {
        if count < self.entries {
            return Ok(());
        }
        self.is_exceeded.set(true);
        Err(E::custom("too many entries"))
    }
}

struct Fields<'m>(&'m Most);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = IndexFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexFile, A::Error> {
        let mut seen = BTreeSet::new();
        let mut weight_map = None;
        let mut file = IndexFile::default();
        while let Some(key) = map.next_key::<String>()? {
            self.0.check(seen.len())?;
            match key.as_str() {
                "weight_map" => weight_map = Some(map.next_value_seed(WeightMap(self.0))?),
                "metadata" => {
                    let json = map.next_value()?;
                    file.read_metadata(json, self.0).map_err(A::Error::custom)?
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
            if let Some(key) = seen.replace(key) {
                return Err(duplicate_key(&key));
            }
        }
        file.shards = weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))?;
        Ok(file)
    }
}

struct WeightMap<'m>(&'m Most);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = BTreeMap<String, Vec<String>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = BTreeMap<String, Vec<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight_map from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // By name, so that a checkpoint is read front to back. The order of the index has no
        // meaning: a JSON object has none.
        let mut shards: Self::Value = BTreeMap::new();
        let mut count = 0;
        while let Some((tensor, file)) = map.next_entry::<String, Cow<'_, str>>()? {
            self.0.check(count)?;
            count += 1;
            // Many tensors share a file. Its name is stored only once.
            match shards.get_mut(&*file) {
                Some(tensors) => tensors.push(tensor),
                None => _ = shards.insert(file.into_owned(), vec![tensor]),
            }
        }
        let mut names: Vec<&str> = shards.values().flatten().map(String::as_str).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(duplicate_key(pair[0]));
        }
        Ok(shards)
    }
}

/// Reads `metadata` into `file`.
struct Strings<'f> {
    file: &'f mut IndexFile,
    most: &'f Most,
}

impl<'de> Visitor<'de> for Strings<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            self.most.check(seen.len())?;
            self.file.is_foreign |= key == FOREIGN_KEY && value.get() != "null";
            if let Ok(text) = serde_json::from_str(value.get()) {
                self.file.strings.insert(key.clone(), text);
            } else if key == "total_size" {
                self.file.total_size = whole_number(value.get());
            }
            if let Some(key) = seen.replace(key) {
                return Err(duplicate_key(&key));
            }
        }
        Ok(())
    }
}

// Some writers compute a size in floating point and write `1024.0`.
fn whole_number(json: &str) -> Option<u64> {
    json.parse().ok().or_else(|| {
        let number: f64 = json.parse().ok()?;
        (number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number)).then_some(number as u64)
    })
}
