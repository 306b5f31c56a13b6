//! Numbers and texts of pickles.

/// Little-endian. `None` if it does not fit.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let fill = if bytes.last().is_some_and(|&last| last >= 0x80) { 0xff } else { 0 };
    let (low, high) = bytes.split_at(bytes.len().min(8));
    let mut number = [fill; 8];
    number[..low.len()].copy_from_slice(low);
    let number = i64::from_le_bytes(number);
    (high.iter().all(|&byte| byte == fill) && (number < 0) == (fill > 0)).then_some(number)
}

/// Protocol 0: Python's `repr` without quotes. Only escapes for quotes are known.
pub(super) fn unquoted(line: &[u8]) -> Option<String> {
    let (&quote @ (b'\'' | b'"'), rest) = line.split_first()? else { return None };
    let inner = rest.strip_suffix(&[quote])?;
    let text = std::str::from_utf8(inner).ok()?;
    (!text.contains('\\')).then(|| text.to_owned())
}

/// Protocol 0: Latin-1, with `\u` and 4 or `\U` and 8 hexadecimal digits.
pub(super) fn raw_unicode(line: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = match (byte, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(byte.into());
                rest = after;
                continue;
            }
        };
        let hex = std::str::from_utf8(after.get(1..=digits)?).ok()?;
        text.push(char::from_u32(u32::from_str_radix(hex, 16).ok()?)?);
        rest = &after[digits + 1..];
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_length_are_read() {
        for (bytes, number) in [
            (&[][..], Some(0)),
            (&[255], Some(-1)),
            (&[0, 1], Some(256)),
            (&[255, 0], Some(255)),
            (&[0; 20], Some(0)),
            (&[255; 20], Some(-1)),
            (&i64::MIN.to_le_bytes(), Some(i64::MIN)),
            (&[0, 0, 0, 0, 0, 0, 0, 128, 0], None),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1], None),
        ] {
            assert_eq!(integer(bytes), number, "{bytes:?}");
        }
    }

    #[test]
    fn texts_of_protocol_0_are_unescaped() {
        assert_eq!(raw_unicode(b"a\\u00e9\xe9\\U0001f600b").unwrap(), "aéé😀b");
        assert_eq!(raw_unicode(b"\\"), Some("\\".into()));
        for wrong in [&b"\\u12"[..], b"\\ud800", b"\\U00110000"] {
            assert_eq!(raw_unicode(wrong), None);
        }
        assert_eq!(unquoted(b"'abc'").unwrap(), "abc");
        for wrong in [&b"'"[..], b"abc", b"'a\\x00'", b"", b"\"a'"] {
            assert_eq!(unquoted(wrong), None);
        }
    }
}
