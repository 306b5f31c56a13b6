//! Files next to the weights.

use std::io::{Error as IoError, ErrorKind};
use std::path::Path;

use safetensors_core::io::next_to;
use safetensors_core::python_json;
use serde_json::Value;

use crate::error::{Error, Result};

/// Bytes of a file. The largest tokenizers have some 40 MB.
const MOST: u64 = 256 << 20;

pub(super) fn read_text(directory: &Path, name: &str) -> Result<Option<String>> {
    let Some(bytes) = next_to::read(directory, name, MOST)? else { return Ok(None) };
    let text =
        String::from_utf8(bytes).map_err(|error| IoError::new(ErrorKind::InvalidData, error));
    text.map(Some).map_err(|error| Error::from(error).in_path(directory.join(name)))
}

/// `bad` makes the error of malformed JSON.
pub(super) fn read_json(
    directory: &Path,
    name: impl AsRef<Path>,
    bad: fn(String) -> Error,
) -> Result<Option<Value>> {
    let Some(bytes) = next_to::read(directory, &name, MOST)? else { return Ok(None) };
    let parsed = python_json::read(&bytes).map(Some);
    parsed.map_err(|error| bad(format!("not JSON: {error}")).in_path(directory.join(name)))
}
