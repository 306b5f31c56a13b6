//! The marks of a file that is changed in place: one replaces the header's length while an edit
//! writes one header over another, and one replaces half of it while the data is changed.
//!
//! A valid length never looks like a mark, because as a length it is larger than any file. So every
//! reader of the format refuses a file that has one. This reader's error says why.

use super::LENGTH_BYTES;

/// The first bytes of the mark.
const BEGIN: [u8; 4] = *b"edt\xff";

/// The last bytes of the mark, in the place of the most significant bytes of the length.
const END: [u8; 2] = *b"\xed\xff";

/// The last bytes of the mark of data.
const DATA_END: [u8; 2] = *b"\xee\xff";

/// The mark of the edit `number`. The number tells one edit from another.
#[cfg(feature = "std")]
pub(crate) fn mark(number: u16) -> [u8; LENGTH_BYTES] {
    let [low, high] = number.to_le_bytes();
    let ([a, b, c, d], [y, z]) = (BEGIN, END);
    [a, b, c, d, low, high, y, z]
}

/// The mark of the change `number` of the data after a header of this length, of which it keeps the
/// lower half. A valid header has no upper half.
#[cfg(feature = "std")]
pub(crate) fn data_mark(length: [u8; LENGTH_BYTES], number: u16) -> [u8; LENGTH_BYTES] {
    let [low, high] = number.to_le_bytes();
    let ([a, b, c, d, ..], [y, z]) = (length, DATA_END);
    [a, b, c, d, low, high, y, z]
}

/// The length of the header, and the number of the change, if this is the mark of data.
#[cfg(feature = "std")]
pub(crate) fn parse_data_mark(mark: [u8; LENGTH_BYTES]) -> Option<([u8; LENGTH_BYTES], u16)> {
    let [a, b, c, d, low, high, ..] = mark;
    let length = [a, b, c, d, 0, 0, 0, 0];
    is_data_marked(mark).then_some((length, u16::from_le_bytes([low, high])))
}

/// Whether a length is the mark of data.
pub(crate) fn is_data_marked(length: [u8; LENGTH_BYTES]) -> bool {
    length.ends_with(&DATA_END)
}

/// Whether a length is a mark, or has its first or its last bytes, as after an interrupted write.
pub(crate) fn is_marked(length: [u8; LENGTH_BYTES]) -> bool {
    length.starts_with(&BEGIN) || length.ends_with(&END) || is_data_marked(length)
}
