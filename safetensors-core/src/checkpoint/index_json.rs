//! The JSON text of an index file, written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::index::Index;

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
