//! JSON of Python, with `NaN`, `Infinity` and `-Infinity`, as in several models' `config.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Result, Value};

const WORDS: [(&[u8], &[u8]); 3] =
    [(b"-Infinity", b"\"-Infini\""), (b"Infinity", b"\"Infini\""), (b"NaN", b"\"N\"")];

/// Reads JSON, with or without a byte order mark. A Python word becomes a string of its first
/// letters.
#[doc(hidden)]
pub fn read(json: &[u8]) -> Result<Value> {
    let json = json.strip_prefix("\u{feff}".as_bytes()).unwrap_or(json);
    serde_json::from_slice(json).or_else(|_| serde_json::from_slice(&plain(json)))
}

/// Returns the entries of a JSON object with their texts, including Python words.
#[doc(hidden)]
pub fn entries(json: &str) -> Result<BTreeMap<String, &str>> {
    let plain = plain(json.as_bytes());
    let values: BTreeMap<String, &RawValue> = serde_json::from_slice(&plain)?;
    let text = |value: &RawValue| {
        // The value is a part of the text that was parsed, which has the length of the other.
        let start = value.get().as_ptr().addr() - plain.as_ptr().addr();
        json.get(start..start + value.get().len()).unwrap_or_default()
    };
    Ok(values.into_iter().map(|(key, value)| (key, text(value))).collect())
}

pub(crate) fn plain(json: &[u8]) -> Cow<'_, [u8]> {
    let mut plain = Cow::Borrowed(json);
    let mut at = 0;
    let mut is_text = false;
    while let Some(byte) = json.get(at) {
        let word = WORDS.iter().find(|(word, _)| !is_text && json[at..].starts_with(word));
        if let Some((word, instead)) = word {
            plain.to_mut()[at..at + word.len()].copy_from_slice(instead);
            at += word.len();
            continue;
        }
        is_text ^= *byte == b'"';
        // The character after a backslash does not end a text.
        at += if is_text && *byte == b'\\' { 2 } else { 1 };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_python_are_read() {
        let json = br#"{"a": [0.0, Infinity, -Infinity], "NaN": NaN, "c": "\"NaN, Infinity"}"#;
        let value = read(json).unwrap();
        assert_eq!(value["a"][0], 0.0);
        assert!(value["a"][1].is_string() && value["a"][1] != value["a"][2]);
        assert!(value["NaN"].is_string());
        assert_eq!(value["c"], "\"NaN, Infinity");
        for wrong in ["Nan", "1NaN", "{\"a\": Infinityx}", "\"NaN", "[NaN", "\"\\", "-NaN", ""] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn entries_keep_their_texts() {
        let json = "{\"b\": [0.0,  Infinity], \"é\": \"-Infinity\", \"a\": {\"x\": -Infinity } }";
        let entries = entries(json).unwrap();
        assert_eq!(entries["b"], "[0.0,  Infinity]");
        assert_eq!(entries["é"], "\"-Infinity\"");
        assert_eq!(super::entries(entries["a"]).unwrap()["x"], "-Infinity");
        assert!(super::entries("[NaN]").is_err() && super::entries("{\"a\": }").is_err());
    }
}
