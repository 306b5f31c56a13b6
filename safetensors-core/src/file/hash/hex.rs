//! Decodes lower-case hex digits.

use crate::format::error::{ErrorKind, Result, excerpt};

/// Decodes exactly `2 * N` digits.
pub(crate) fn decode<const N: usize>(text: &str) -> Result<[u8; N]> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return Err(ErrorKind::BadDigest { expected: 2 * N, found: excerpt(text) }.into());
    }
    let mut bytes = [0; N];
    for (number, byte) in bytes.iter_mut().enumerate() {
        // The two digits are known to be some.
        *byte = u8::from_str_radix(&text[2 * number..][..2], 16).unwrap_or_default();
    }
    Ok(bytes)
}
