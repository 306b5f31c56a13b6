//! Replaces a header's length while an edit overwrites the header.
//!
//! As a length, a mark is larger than any file, so every reader of the format refuses the file.

use super::LENGTH_BYTES;

const BEGIN: [u8; 4] = *b"edt\xff";

/// The most significant bytes of the length.
const END: [u8; 2] = *b"\xed\xff";

/// `number` differs between edits.
pub(crate) fn mark(number: u16) -> [u8; LENGTH_BYTES] {
    let [low, high] = number.to_le_bytes();
    let ([a, b, c, d], [y, z]) = (BEGIN, END);
    [a, b, c, d, low, high, y, z]
}

/// Returns `true` for a half-written mark, too.
pub(crate) fn is_marked(length: [u8; LENGTH_BYTES]) -> bool {
    length.starts_with(&BEGIN) || length.ends_with(&END)
}
