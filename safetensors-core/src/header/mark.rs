//! The mark that stands in place of the header's length while an edit writes one header over
//! another.
//!
//! A valid length never looks like it: as a length it is larger than any file. So every reader of
//! the format refuses a file that has it, this one with an error that says why.

use super::LENGTH_BYTES;

/// Begins the mark.
const BEGIN: [u8; 4] = *b"edt\xff";

/// Ends it. It is in the place of the most significant bytes of the length.
const END: [u8; 2] = *b"\xed\xff";

/// A mark of this number, which tells one edit from another.
#[cfg(feature = "std")]
pub(crate) fn mark(number: u16) -> [u8; LENGTH_BYTES] {
    let [low, high] = number.to_le_bytes();
    let ([a, b, c, d], [y, z]) = (BEGIN, END);
    [a, b, c, d, low, high, y, z]
}

/// Whether a mark stands where the length should be, or half of one.
pub(crate) fn is_marked(length: [u8; LENGTH_BYTES]) -> bool {
    length.starts_with(&BEGIN) || length.ends_with(&END)
}
