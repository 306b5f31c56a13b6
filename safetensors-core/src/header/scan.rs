//! Scanning text eight bytes at a time, in plain 64-bit arithmetic.

const ONES: u64 = u64::MAX / 255;
const HIGH_BITS: u64 = ONES << 7;

/// How many plain characters of a string `bytes` begins with: up to a quote, a backslash, a control
/// character or the end.
#[inline(always)]
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // With bit 1 flipped, a quote is 0x20 and nothing else but control characters is below
        // 0x21. A subtraction borrows only from bytes above one that is marked, so the lowest mark
        // is always right.
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

/// Reads the number that `bytes` begins with and returns it with what follows it.
///
/// `None` for a number of more than 15 digits, with a superfluous zero, or so close to the end that
/// no eight bytes can be taken at once.
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

/// The value and the number of the digits, at most eight, that `bytes` begins with.
#[inline(always)]
fn digits(bytes: &[u8]) -> Option<(u64, usize)> {
    // Digits become 0 to 9, and only digits do. A sum carries only out of a byte that is marked, as
    // above.
    let word = u64::from_le_bytes(*bytes.first_chunk()?) ^ (ONES * u64::from(b'0'));
    let marks = (word.wrapping_add(ONES * (0x80 - 10)) | word) & HIGH_BITS;
    let len = marks.trailing_zeros() as usize / 8;
    // The digits move up to the end of the word; zeros come before them.
    let word = word.checked_shl(64 - 8 * len as u32).unwrap_or(0);
    // Each step joins neighbours: digits to pairs, pairs to fours, fours to eight.
    let pairs = word.wrapping_mul(10 * (1 << 8) + 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 * (1 << 16) + 1) >> 16 & 0x0000_ffff_0000_ffff;
    let eight = fours.wrapping_mul(10_000 * (1 << 32) + 1) >> 32;
    Some((eight, len))
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    /// Long enough that eight bytes can be taken after it.
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
    fn numbers_are_those_of_the_standard_library() {
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
    fn what_is_no_short_plain_number_is_left() {
        for text in ["", "01", "00", "-1", "+1", " 1", "1234567890123456", "9999999999999999999999"]
        {
            assert_eq!(number(alloc::format!("{text}{TAIL}").as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"1,2]}"), None, "no eight bytes");
        // Bytes around the digits, and beyond ASCII, are none.
        for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
            let bytes = [b'4', b'2', byte, b'0', 0xff, 0x00, b':', b'/'];
            assert_eq!(number(&bytes), Some((42, &bytes[2..])), "{byte}");
        }
    }
}
