//! Writing the text of an index.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::format::header::Metadata;

/// The text is the same as Python's `json.dumps(index, indent=2, sort_keys=True) + "\n"`.
pub(super) fn to_json<'a>(
    strings: &Metadata,
    total_size: Option<u64>,
    weight_map: impl Iterator<Item = (&'a str, &'a str)>,
) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Form<'a> {
        metadata: BTreeMap<&'a str, Value>,
        weight_map: BTreeMap<&'a str, &'a str>,
    }

    let strings = strings.iter().map(|(key, text)| (key.as_str(), Value::from(text.as_str())));
    let mut metadata: BTreeMap<_, _> = strings.collect();
    metadata.extend(total_size.map(|size| ("total_size", Value::from(size))));
    let json = serde_json::to_string_pretty(&Form { metadata, weight_map: weight_map.collect() })?;
    let mut ascii = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => ascii.push(c),
            // Other characters occur only inside strings, where they can be written as escapes of
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
