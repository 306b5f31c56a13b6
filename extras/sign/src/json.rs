//! JSON from outside: bounded depth and number of values, no duplicate keys.

use std::cell::Cell;
use std::fmt;

use safetensors_core::Result;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

use crate::error::ErrorKind;

/// The format needs six levels.
const MAX_DEPTH: usize = 16;

/// A value takes up to 16 times its text in memory. A signed file is four values.
const MAX_VALUES: usize = 2 << 20;

/// Ignores unknown keys. Parses a [`Value`] first: a derived type accepts duplicates of an ignored
/// key.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    let value = || {
        let mut text = serde_json::Deserializer::from_slice(text);
        let left = Cell::new(MAX_VALUES);
        let value = Unique { depth: MAX_DEPTH, left: &left }.deserialize(&mut text)?;
        text.end()?;
        T::deserialize(value)
    };
    value().map_err(|error| {
        // The message may quote text of the file.
        let problem = error.to_string().escape_debug().take(300).collect();
        ErrorKind::BadBundle { problem }.into()
    })
}

#[derive(Clone, Copy)]
struct Unique<'a> {
    depth: usize,
    left: &'a Cell<usize>,
}

impl Unique<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1);
        Ok(Self { depth: depth.ok_or_else(|| E::custom("nested too deeply"))?, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| D::Error::custom("too many values"))?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let item = self.deeper()?;
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(item)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let value = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            map.insert(key, entries.next_value_seed(value)?);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_json_is_read() {
        let ok = parse::<Value>(br#" {"a":[1,-2,3.5,null,true,"\u00e9"]} "#).unwrap();
        assert_eq!(ok["a"][5], "\u{e9}");
        let deep = |depth| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(parse::<Value>(&deep(MAX_DEPTH)).is_ok());
        let many = [b"[", &b"1,".repeat(MAX_VALUES)[..], b"1]"].concat();
        for (text, problem) in [
            (&many[..], "too many values"),
            (&deep(MAX_DEPTH + 1)[..], "nested too deeply"),
            (&deep(1 << 20), "nested too deeply"),
            (br#"{"a":1,"\u0061":2}"#, "duplicate key"),
            (br#"{"b":{"a":1,"a":2}}"#, "duplicate key"),
            (b"{} {}", "trailing characters"),
            (b"\xef\xbb\xbf{}", "expected value"),
            (b"\"\xff\"", "invalid unicode"),
            (b"", "EOF"),
        ] {
            let error = parse::<Value>(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
