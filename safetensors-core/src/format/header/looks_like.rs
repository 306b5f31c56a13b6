//! Adds to errors the other format of a malformed file.

use crate::format::error::{Error, ErrorKind};
use crate::format::other_format::OtherFormat;

pub(crate) const START: usize = 512;

/// Returns the place of the bytes that explain the error: the file's start, or the end of its
/// tensors.
pub(crate) fn telling(error: &Error, file_len: u64) -> u64 {
    match error.kind() {
        ErrorKind::TrailingData { expected, found } => {
            file_len.saturating_sub(found.saturating_sub(*expected))
        }
        _ => 0,
    }
}

/// Adds the format of `bytes` if it may have caused the error.
#[cold]
pub(crate) fn explain(error: Error, bytes: &[u8]) -> Error {
    let may_be_other = matches!(
        error.kind(),
        ErrorKind::TrailingData { .. }
            | ErrorKind::TooShort { .. }
            | ErrorKind::HeaderTooLarge { .. }
            | ErrorKind::HeaderPastEnd { .. }
            | ErrorKind::NotUtf8 { .. }
            | ErrorKind::NotAnObject { .. }
            | ErrorKind::Json { .. }
    );
    match OtherFormat::detect(bytes).filter(|_| may_be_other) {
        Some(format) => error.looking_like(format),
        None => error,
    }
}
