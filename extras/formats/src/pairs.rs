//! [`Pairs`]: a map in a file.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// At most `MOST` entries, no duplicates. A small entry takes many times its bytes in memory.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Pairs<T, const MOST: usize>(pub(crate) BTreeMap<String, T>);

impl<T, const MOST: usize> Pairs<T, MOST> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T, const MOST: usize> Default for Pairs<T, MOST> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Pairs<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Read<T, MOST> {
            type Value = Pairs<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match MOST {
                    usize::MAX => f.write_str("a map without doubles"),
                    _ => write!(f, "a map of at most {MOST} entries"),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if pairs.len() == MOST {
                        return Err(A::Error::invalid_length(MOST + 1, &self));
                    }
                    if pairs.contains_key(&key) {
                        return Err(A::Error::custom(format!("two entries are named {key:?}")));
                    }
                    pairs.insert(key, map.next_value()?);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}
