//! The JSON text of an index file, read and written.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::index::Index;
use crate::header::Metadata;

/// What is read of an index file. Everything else in it is read over.
#[derive(Debug, Default)]
pub(super) struct IndexFile {
    pub(super) weight_map: BTreeMap<String, String>,
    pub(super) total_size: Option<u64>,
    /// The strings in the index's `metadata`.
    pub(super) strings: Metadata,
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
                let mut file = IndexFile::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "weight_map" => {
                            weight_map = Some(map.next_value::<UniqueMap<String>>()?.entries)
                        }
                        "metadata" => {
                            file.read_metadata(map.next_value()?).map_err(A::Error::custom)?
                        }
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                    if let Some(key) = seen.replace(key) {
                        return Err(A::Error::custom(format_args!("the key {key:?} stands twice")));
                    }
                }
                file.weight_map =
                    weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))?;
                Ok(file)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl IndexFile {
    /// Takes what is of use from `metadata`. Files have all sorts of things there, so nothing in it
    /// is an error but a key that stands twice.
    fn read_metadata(&mut self, json: &RawValue) -> serde_json::Result<()> {
        if !json.get().starts_with('{') {
            return Ok(());
        }
        for (key, value) in serde_json::from_str::<UniqueMap<&RawValue>>(json.get())?.entries {
            if let Ok(text) = serde_json::from_str(value.get()) {
                self.strings.insert(key, text);
            } else if key == "total_size" {
                self.total_size = whole_number(value.get());
            }
        }
        Ok(())
    }
}

/// A number of bytes. Some writers sum them up in floating point.
fn whole_number(json: &str) -> Option<u64> {
    json.parse().ok().or_else(|| {
        let number: f64 = json.parse().ok()?;
        (number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number)).then_some(number as u64)
    })
}

/// A JSON object that refuses a key that stands twice.
struct UniqueMap<V> {
    entries: BTreeMap<String, V>,
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a weight_map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("{key:?} stands twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(UniqueMap { entries })
            }
        }

        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// The text that `json.dumps(index, indent=2, sort_keys=True) + "\n"` makes in Python.
pub(super) fn to_json(index: &Index) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Form<'a> {
        metadata: BTreeMap<&'a str, Value>,
        weight_map: BTreeMap<&'a str, &'a str>,
    }

    let strings =
        index.metadata.iter().map(|(key, text)| (key.as_str(), Value::from(text.as_str())));
    let mut metadata: BTreeMap<_, _> = strings.collect();
    metadata.extend(index.total_size.map(|size| ("total_size", Value::from(size))));
    let weight_map = index
        .shards()
        .flat_map(|(file, names)| names.iter().map(move |name| (name.as_str(), file)));
    let json = serde_json::to_string_pretty(&Form { metadata, weight_map: weight_map.collect() })?;
    let mut ascii = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => ascii.push(c),
            // Outside of strings there are no others, and inside they can stand as escapes of
            // UTF-16 code units.
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a `String` cannot fail.
                let _ = write!(ascii, "\\u{unit:04x}");
            }),
        }
    }
    ascii.push('\n');
    Ok(ascii.into_bytes())
}
