//! [`Content`]: the CBOR before the bytes of tensors in a burnpack file.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::MOST_ENTRIES;
use crate::burn::MOST_DIMS;

#[derive(Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) tensors: Pairs<Described>,
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub(super) metadata: Pairs<String>,
    /// Numbers that are not tensors, such as the steps of an optimizer.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub(super) scalars: Pairs<Scalar>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum Scalar {
    Int(i64),
    UInt(u64),
    Float(f64),
    Bool(bool),
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) dtype: Named,
    pub(super) shape: Dims,
    /// From the start of the data on.
    pub(super) data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) param_id: Option<u64>,
}

/// A map of a file, in which no key is there twice.
pub(super) struct Pairs<T>(pub(super) BTreeMap<String, T>);

/// A dtype, with its setting if it has one: `F32`, `Bool(Native)`.
#[derive(Clone)]
pub(super) struct Named(pub(super) String);

/// The dimensions of a tensor.
#[derive(Clone)]
pub(super) struct Dims(pub(super) Vec<u64>);

impl<T> Pairs<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Read<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a map of at most {MOST_ENTRIES} entries")
            }

            // An entry of a few bytes takes many times as much memory, so the number is limited.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Pairs::default();
                while let Some(key) = map.next_key::<String>()? {
                    if pairs.0.len() == MOST_ENTRIES {
                        return Err(A::Error::invalid_length(MOST_ENTRIES + 1, &self));
                    }
                    if pairs.0.contains_key(&key) {
                        return Err(A::Error::custom(format!("two entries are named {key:?}")));
                    }
                    pairs.0.insert(key, map.next_value()?);
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.split_once('(') {
            None => serializer.serialize_str(&self.0),
            Some((name, setting)) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(name, setting.trim_end_matches(')'))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a dtype")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Named, E> {
                Ok(Named(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let name = map.next_key::<String>()?.unwrap_or_default();
                let named = if name == "QFloat" {
                    map.next_value::<IgnoredAny>()?;
                    name
                } else {
                    format!("{name}({})", map.next_value::<String>()?)
                };
                match map.next_key::<IgnoredAny>()? {
                    None => Ok(Named(named)),
                    Some(_) => Err(A::Error::custom("a dtype has one name")),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl Serialize for Dims {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a shape of at most {MOST_DIMS} dimensions")
            }

            // Eight bytes in memory may be one in the file, so the number is limited here.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MOST_DIMS {
                        return Err(A::Error::invalid_length(MOST_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(Read)
    }
}
