//! Scans eight bytes at a time, in 64-bit arithmetic.

/// 1 in each byte.
const ONES: u64 = u64::MAX / 255;
const HIGH_BITS: u64 = ONES << 7;

/// Counts the bytes before a quote, a backslash or a control character.
#[inline(always)]
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // Each byte that ends the run gets a mark in its highest bit. Flipping bit 1 turns a quote
        // into 0x20, and only control characters are below that. So subtracting 0x21 marks just
        // these, and for a backslash the XOR gives 0, which subtracting 1 marks. A borrow reaches
        // only bytes above a marked one, so the lowest mark is always right. `!word` removes the
        // marks of bytes beyond ASCII.
        let quotes_and_controls = (word ^ (ONES * 2)).wrapping_sub(ONES * 0x21);
        let backslashes = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
        let marks = (quotes_and_controls | backslashes) & !word & HIGH_BITS;
        if marks != 0 {
            return i * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let is_end = |&byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    bytes.len() - tail.len() + tail.iter().position(is_end).unwrap_or(tail.len())
}

/// Reads a number. `None` for more than 15 digits, a leading zero, and fewer than eight bytes left
/// to load as a word.
#[inline(always)]
pub(super) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (high, len) = digits(bytes)?;
    if len == 0 || (bytes[0] == b'0' && len > 1) {
        return None;
    }
    let rest = &bytes[len..];
    if len < 8 {
        return Some((high, rest));
    }
    let (low, len) = digits(rest)?;
    let power = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000].get(len)?;
    Some((high * power + low, &rest[len..]))
}

/// Returns the value and the number of at most eight digits.
#[inline(always)]
fn digits(bytes: &[u8]) -> Option<(u64, usize)> {
    // The XOR turns digits, and nothing else, into 0 to 9. Adding 0x80 - 10 sets the highest bit of
    // the bytes 10 to 0x7f, and larger ones have it already. Only a marked byte can carry into the
    // next, so the lowest mark is right, as above.
    let word = u64::from_le_bytes(*bytes.first_chunk()?) ^ (ONES * u64::from(b'0'));
    let marks = (word.wrapping_add(ONES * (0x80 - 10)) | word) & HIGH_BITS;
    let len = marks.trailing_zeros() as usize / 8;
    // Shift the digits to the top of the word, so that zeros precede them.
    let word = word.checked_shl(64 - 8 * len as u32).unwrap_or(0);
    // Each step joins two neighbours: digits to pairs, pairs to fours, fours to eight digits.
    let pairs = word.wrapping_mul(10 * (1 << 8) + 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 * (1 << 16) + 1) >> 16 & 0x0000_ffff_0000_ffff;
    let eight = fours.wrapping_mul(10_000 * (1 << 32) + 1) >> 32;
    Some((eight, len))
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    /// Long enough to load eight bytes at any digit before it.
    const TAIL: &str = "],\"end of the text";

    #[test]
    fn plain_runs_end_where_a_byte_by_byte_scan_ends_them() {
        for len in 0..20 {
            for end in 0..=u8::MAX {
                let mut bytes = alloc::vec![b'a'; len];
                bytes.push(end);
                bytes.extend([0x21, 0x7f, 0x80, 0xff, 0x1f, b'"', b'\\']);
                let expected =
                    bytes.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
                assert_eq!(Some(plain_len(&bytes)), expected, "{len} {end}");
                assert_eq!(plain_len(&bytes[..len]), len);
            }
        }
    }

    #[test]
    fn numbers_equal_those_of_std() {
        let mut digits = String::new();
        for digit in "123456789012345".chars() {
            digits.push(digit);
            for text in [
                digits.clone(),
                "9".repeat(digits.len()),
                alloc::format!("1{}", "0".repeat(digits.len() - 1)),
            ] {
                let bytes = alloc::format!("{text}{TAIL}");
                assert_eq!(
                    number(bytes.as_bytes()),
                    Some((text.parse().unwrap(), TAIL.as_bytes())),
                    "{text}"
                );
            }
        }
        assert_eq!(number(b"0,12345678").unwrap().0, 0);
    }

    #[test]
    fn other_than_short_plain_numbers_are_refused() {
        for text in ["", "01", "00", "-1", "+1", " 1", "1234567890123456", "9999999999999999999999"]
        {
            assert_eq!(number(alloc::format!("{text}{TAIL}").as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"1,2]}"), None, "no eight bytes");
        // Bytes next to the digits in ASCII, and bytes beyond ASCII, are not digits.
        for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
            let bytes = [b'4', b'2', byte, b'0', 0xff, 0x00, b':', b'/'];
            assert_eq!(number(&bytes), Some((42, &bytes[2..])), "{byte}");
        }
    }
}
