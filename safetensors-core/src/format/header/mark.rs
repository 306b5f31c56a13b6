//! The mark that replaces a header's length while an edit writes one header over another.
//!
//! A valid length never looks like a mark, because as a length it is larger than any file. So every
//! reader of the format refuses a file that has one. This reader's error gives the reason.

use super::LENGTH_BYTES;

/// The first bytes of the mark.
const BEGIN: [u8; 4] = *b"edt\xff";

/// The last bytes of the mark, in the place of the most significant bytes of the length.
const END: [u8; 2] = *b"\xed\xff";

/// Returns the mark of the edit `number`, which differs between edits.
pub(crate) fn mark(number: u16) -> [u8; LENGTH_BYTES] {
    let [low, high] = number.to_le_bytes();
    let ([a, b, c, d], [y, z]) = (BEGIN, END);
    [a, b, c, d, low, high, y, z]
}

/// Returns whether a length is a mark, or has its first or its last bytes, as after an interrupted
/// write.
pub(crate) fn is_marked(length: [u8; LENGTH_BYTES]) -> bool {
    length.starts_with(&BEGIN) || length.ends_with(&END)
}
