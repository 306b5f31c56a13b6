//! The files beside the weights.

use std::path::Path;
use std::{fs, io};

use serde_json::Value;

use crate::error::{Error, Result, label};

/// The most bytes of such a file. The largest tokenizers have some 40 MB.
const MOST: u64 = 256 << 20;

/// The text of a file; `None` if it is not there.
pub(super) fn read_text(path: &Path) -> Result<Option<String>> {
    let read = || -> io::Result<Option<String>> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(metadata) if metadata.len() > MOST => Err(io::ErrorKind::FileTooLarge.into()),
            Ok(_) => fs::read_to_string(path).map(Some),
        }
    };
    read().map_err(|error| Error::from(error).in_file(label(path)))
}

/// The value of a file of JSON; `None` if it is not there. `bad` makes the error of a file that is
/// not JSON.
pub(super) fn read_json(path: &Path, bad: fn(String) -> Error) -> Result<Option<Value>> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let parsed = serde_json::from_str(text.trim_start_matches('\u{feff}'));
    parsed.map(Some).map_err(|error| bad(format!("not JSON: {error}")).in_file(label(path)))
}
