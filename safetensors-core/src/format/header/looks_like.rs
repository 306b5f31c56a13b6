//! Says in errors which other format a malformed file looks like.

use crate::format::error::{Error, ErrorKind};
use crate::format::other_format::OtherFormat;

/// The number of bytes that are examined.
pub(crate) const START: usize = 512;

/// Returns the offset of the bytes that explain why a file of `file_len` bytes is malformed: its
/// start, or the end of its tensors.
pub(crate) fn telling(error: &Error, file_len: u64) -> u64 {
    match error.kind() {
        ErrorKind::TrailingData { expected, found } => {
            file_len.saturating_sub(found.saturating_sub(*expected))
        }
        _ => 0,
    }
}

/// Adds to an error the format that the bytes there look like, see [`telling`]. Errors that a file
/// of another format cannot cause are returned unchanged.
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
    match OtherFormat::of(bytes).filter(|_| may_be_other) {
        Some(format) => error.looking_like(format),
        None => error,
    }
}
