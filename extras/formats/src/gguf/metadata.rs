//! A header's keys and values, as metadata.

use std::collections::BTreeMap;

use serde_json::Value;

use super::reader::GgufReader;
use crate::budget::Depth;
use crate::error::Result;

/// Values of an array that becomes metadata, with nested arrays, so that memory is near the
/// header's length.
const MOST: u32 = 64;

const ALIGNMENT: u64 = 32;

/// ComfyUI-GGUF's prefix of a key with a tensor's shape. It stores the tensor in rows of 256
/// numbers, because its own rows are not complete blocks.
pub(super) const SHAPE: &str = "comfy.gguf.orig_shape.";

pub(super) struct Keys {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) alignment: u64,
}

pub(super) fn read(reader: &mut GgufReader, count: u64) -> Result<Keys> {
    let mut keys = Keys { metadata: BTreeMap::new(), alignment: ALIGNMENT };
    for _ in 0..count {
        let key = reader.name()?;
        let kind = reader.u32()?;
        let value = value(reader, kind, Depth::default(), &mut { MOST })?;
        if key == "general.alignment" {
            let alignment = value.as_ref().and_then(Value::as_u64);
            keys.alignment = alignment
                .filter(|alignment| alignment.is_power_of_two())
                .ok_or_else(|| reader.problem("general.alignment should be a power of two"))?;
        }
        let text = match value {
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
            // Longer than any shape, which is said where the tensors are known.
            None if key.starts_with(SHAPE) => "a longer array".into(),
            None => continue,
        };
        if keys.metadata.contains_key(&key) {
            return Err(reader.problem(format!("duplicate key {key:?}")));
        }
        keys.metadata.insert(key, text);
    }
    Ok(keys)
}

/// `None` for an array of more than `left` values, which counts down.
fn value(
    reader: &mut GgufReader,
    kind: u32,
    depth: Depth,
    left: &mut u32,
) -> Result<Option<Value>> {
    Ok(Some(match kind {
        0 => reader.byte()?.into(),
        1 => i8::from_le_bytes(reader.array()?).into(),
        2 => u16::from_le_bytes(reader.array()?).into(),
        3 => i16::from_le_bytes(reader.array()?).into(),
        4 => reader.u32()?.into(),
        5 => i32::from_le_bytes(reader.array()?).into(),
        6 => number(f32::from_le_bytes(reader.array()?).to_string()),
        7 => match reader.byte()? {
            0 => false.into(),
            1 => true.into(),
            other => return Err(reader.problem(format!("a boolean is {other}, not 0 or 1"))),
        },
        8 => reader.name()?.into(),
        9 => {
            let kind = reader.u32()?;
            let count = reader.u64()?;
            let depth = depth.deeper()?;
            let mut items = Vec::new();
            let mut is_whole = true;
            for _ in 0..count {
                let item = value(reader, kind, depth, left)?;
                match (item, left.checked_sub(1)) {
                    (Some(item), Some(rest)) if is_whole => {
                        items.push(item);
                        *left = rest;
                    }
                    _ => is_whole = false,
                }
            }
            return Ok(is_whole.then_some(Value::Array(items)));
        }
        10 => reader.u64()?.into(),
        11 => i64::from_le_bytes(reader.array()?).into(),
        12 => number(f64::from_le_bytes(reader.array()?).to_string()),
        _ => return Err(reader.problem(format!("the type {kind} of a value is unknown"))),
    }))
}

/// Returns the shortest text of the number. JSON has no infinity.
fn number(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(number) => number,
        Err(_) => text.into(),
    }
}
