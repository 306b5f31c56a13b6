//! The JSON text of an index file, read and written.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::index::Index;
use crate::Metadata;

/// What is read of an index file. Everything else in it is read over.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) metadata: IndexMetadata,
    pub(super) weight_map: BTreeMap<String, String>,
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
                let mut metadata = IndexMetadata::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "weight_map" => weight_map = Some(map.next_value::<WeightMap>()?.0),
                        "metadata" => metadata = map.next_value()?,
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                    if let Some(key) = seen.replace(key) {
                        return Err(A::Error::custom(format_args!("the key {key:?} stands twice")));
                    }
                }
                let weight_map = weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))?;
                Ok(IndexFile { metadata, weight_map })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A map of tensor names to file names that refuses a key that stands twice.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a weight_map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    if let Some((tensor, _)) = pairs.get_key_value(&tensor) {
                        return Err(A::Error::custom(format_args!("{tensor:?} stands twice in weight_map")));
                    }
                    pairs.insert(tensor, file);
                }
                Ok(WeightMap(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// What is read of an index's `metadata`. Files have all sorts of things there, so nothing in it is an error but a key that
/// stands twice.
#[derive(Debug, Default)]
pub(super) struct IndexMetadata {
    pub(super) total_size: Option<u64>,
    pub(super) strings: Metadata,
}

impl<'de> Deserialize<'de> for IndexMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(AnyVisitor { entries: true })? {
            Any::Object(metadata) => Ok(metadata),
            _ => Ok(Self::default()),
        }
    }
}

/// A JSON value of which only what is of use stays in memory.
enum Any {
    Text(String),
    Number(u64),
    Object(IndexMetadata),
    Other,
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor { entries: false })
    }
}

struct AnyVisitor {
    /// Whether to keep the entries of an object.
    entries: bool,
}

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Any::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Any, E> {
        Ok(Any::Other)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Any, E> {
        Ok(Any::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Any, E> {
        Ok(Any::Other)
    }

    /// Some writers sum sizes up in floating point.
    fn visit_f64<E>(self, number: f64) -> Result<Any, E> {
        let whole = number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number);
        Ok(if whole { Any::Number(number as u64) } else { Any::Other })
    }

    fn visit_str<E>(self, text: &str) -> Result<Any, E> {
        Ok(Any::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Any, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Any::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
        if !self.entries {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Any::Other);
        }
        let mut metadata = IndexMetadata::default();
        let mut seen = std::collections::BTreeSet::new();
        while let Some((key, value)) = map.next_entry::<String, Any>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("{key:?} stands twice in metadata")));
            }
            match value {
                Any::Text(text) => _ = metadata.strings.insert(key, text),
                Any::Number(number) if key == "total_size" => metadata.total_size = Some(number),
                _ => {}
            }
        }
        Ok(Any::Object(metadata))
    }
}

/// The text that `json.dumps(index, indent=2, sort_keys=True) + "\n"` makes in Python.
pub(super) fn to_json(index: &Index) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Form<'a> {
        metadata: BTreeMap<&'a str, Value>,
        weight_map: BTreeMap<&'a str, &'a str>,
    }

    let strings = index.metadata.iter().map(|(key, text)| (key.as_str(), Value::from(text.as_str())));
    let mut metadata: BTreeMap<_, _> = strings.collect();
    metadata.extend(index.total_size.map(|size| ("total_size", Value::from(size))));
    let weight_map = index.shards().flat_map(|(file, names)| names.iter().map(move |name| (name.as_str(), file)));
    let json = serde_json::to_string_pretty(&Form { metadata, weight_map: weight_map.collect() })?;
    let mut ascii = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => ascii.push(c),
            // Outside of strings there are no others, and inside they can stand as escapes of UTF-16 code units.
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a `String` cannot fail.
                let _ = write!(ascii, "\\u{unit:04x}");
            }),
        }
    }
    ascii.push('\n');
    Ok(ascii.into_bytes())
}
