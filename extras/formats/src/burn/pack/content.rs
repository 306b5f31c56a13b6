//! [`Content`]: the CBOR before the bytes of tensors in a burnpack file.

use std::fmt;

use safetensors_core::framework::RecordScalar;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::MOST_ENTRIES;
use crate::burn::MOST_DIMS;
use crate::pairs::Pairs;

#[derive(Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) tensors: Pairs<Described, MOST_ENTRIES>,
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub(super) metadata: Pairs<String, MOST_ENTRIES>,
    /// Not tensors, such as an optimizer's steps.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub(super) scalars: Pairs<Scalar, MOST_ENTRIES>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Scalar(#[serde(with = "Form")] pub(super) RecordScalar);

#[derive(Serialize, Deserialize)]
#[serde(remote = "RecordScalar")]
enum Form {
    #[serde(rename = "Int")]
    I64(i64),
    #[serde(rename = "UInt")]
    U64(u64),
    #[serde(rename = "Float")]
    F64(f64),
    Bool(bool),
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) dtype: Named,
    pub(super) shape: Dims,
    /// From the start of the data.
    pub(super) data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) param_id: Option<u64>,
}

/// A dtype, with its setting if it has one: `F32`, `Bool(Native)`.
#[derive(Clone)]
pub(super) struct Named(pub(super) String);

#[derive(Clone, Serialize)]
#[serde(transparent)]
pub(super) struct Dims(pub(super) Vec<u64>);

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
