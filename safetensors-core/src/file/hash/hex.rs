//! Decodes lower-case hex digits.

use crate::format::error::{ErrorKind, Result, excerpt};

/// Decodes exactly `2 * N` lower-case hex digits.
///
/// # Errors
///
/// [`ErrorKind::BadDigest`].
pub(crate) fn decode<const N: usize>(text: &str) -> Result<[u8; N]> {
    let wrong = || ErrorKind::BadDigest { expected: 2 * N, found: excerpt(text) }.into();
    digits(text).ok_or_else(wrong)
}

fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}
