//! JSON objects without duplicate keys: readers would take different values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

pub(crate) struct UniqueMap<V> {
    expected: &'static str,
    values: PhantomData<V>,
}

impl<V> UniqueMap<V> {
    pub(crate) fn new(expected: &'static str) -> Self {
        Self { expected, values: PhantomData }
    }

    pub(crate) fn parse<'de>(self, json: &'de str) -> serde_json::Result<BTreeMap<String, V>>
    where
        V: Deserialize<'de>,
    {
        let mut text = serde_json::Deserializer::from_str(json);
        let map = self.deserialize(&mut text)?;
        text.end()?;
        Ok(map)
    }
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for UniqueMap<V> {
    type Value = BTreeMap<String, V>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMap<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, V>()? {
            match entries.entry(key) {
                Entry::Vacant(new) => _ = new.insert(value),
                Entry::Occupied(twice) => return Err(duplicate_key(twice.key())),
            }
        }
        Ok(entries)
    }
}

pub(crate) fn duplicate_key<E: Error>(key: &str) -> E {
    E::custom(format_args!("duplicate key {key:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_object_without_duplicate_keys_is_accepted() {
        let parse = |json| UniqueMap::<u8>::new("numbers").parse(json);
        assert_eq!(parse(" {} ").unwrap(), BTreeMap::new());
        let two = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(parse(r#"{"b":1,"a":2}"#).unwrap(), two);
        for (json, problem) in [
            (r#"{"a":1,"a":1}"#, r#"duplicate key "a""#),
            (r#"{"a":1,"\u0061":2}"#, r#"duplicate key "a""#),
            ("[]", "expected numbers"),
            ("{} {}", "trailing characters"),
            ("", "EOF"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(problem), "{json}: {error}");
        }
    }
}
