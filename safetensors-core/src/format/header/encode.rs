//! Writes the header.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::ops::Range;

use super::scan::plain_len;
use super::{LENGTH_BYTES, METADATA_KEY, Metadata};
use crate::format::dtype::Dtype;

pub(crate) struct HeaderEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    pub(crate) data_offsets: Range<u64>,
}

/// Encodes the length, the text and padding, so that the data begins at a multiple of `align`.
///
/// Equal inputs give equal bytes.
pub(crate) fn encode<'a>(
    metadata: &Metadata,
    entries: impl Iterator<Item = HeaderEntry<'a>>,
    align: usize,
) -> Vec<u8> {
    let mut json = String::from("{");
    if !metadata.is_empty() {
        push_string(&mut json, METADATA_KEY);
        json.push_str(":{");
        for (i, (key, value)) in metadata.iter().enumerate() {
            json.push_str(if i == 0 { "" } else { "," });
            push_string(&mut json, key);
            json.push(':');
            push_string(&mut json, value);
        }
        json.push('}');
    }
    let mut digits = itoa::Buffer::new();
    for HeaderEntry { name, dtype, shape, data_offsets } in entries {
        json.push_str(if json.len() == 1 { "" } else { "," });
        push_string(&mut json, name);
        json.push_str(":{\"dtype\":\"");
        json.push_str(dtype.name());
        json.push_str("\",\"shape\":[");
        for (i, dim) in shape.iter().enumerate() {
            json.push_str(if i == 0 { "" } else { "," });
            json.push_str(digits.format(*dim));
        }
        json.push_str("],\"data_offsets\":[");
        json.push_str(digits.format(data_offsets.start));
        json.push(',');
        json.push_str(digits.format(data_offsets.end));
        json.push_str("]}");
    }
    json.push('}');
    let padded = (LENGTH_BYTES + json.len()).next_multiple_of(align);
    let json_len = padded - LENGTH_BYTES;
    let mut bytes = Vec::with_capacity(padded);
    bytes.extend_from_slice(&(json_len as u64).to_le_bytes());
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(padded, b' ');
    bytes
}

/// Writes only the necessary escapes.
fn push_string(json: &mut String, text: &str) {
    json.push('"');
    let mut rest = text;
    // Text between two escapes is copied at once.
    loop {
        let (plain, others) = rest.split_at(plain_len(rest.as_bytes()));
        json.push_str(plain);
        let Some(&first) = others.as_bytes().first() else { break };
        match first {
            b'"' => json.push_str("\\\""),
            b'\\' => json.push_str("\\\\"),
            0x8 => json.push_str("\\b"),
            b'\t' => json.push_str("\\t"),
            b'\n' => json.push_str("\\n"),
            0xc => json.push_str("\\f"),
            b'\r' => json.push_str("\\r"),
            byte => {
                let _ = write!(json, "\\u{byte:04x}");
            }
        }
        rest = &others[1..];
    }
    json.push('"');
}
