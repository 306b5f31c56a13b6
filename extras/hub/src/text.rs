//! Shows text from outside in messages: escaped, on one line, and of bounded length.

use std::fmt::{self, Write};

/// The most bytes that a path or a message takes, including its escapes.
const PLAIN: usize = 320;

/// Displays a text without quotes. Characters that are not printable are escaped, and the end of a
/// long text is omitted.
pub(crate) struct Plain<'a>(pub(crate) &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escaped = 0;
        let fit = self.0.chars().take_while(|c| {
            escaped += c.escape_debug().map(char::len_utf8).sum::<usize>();
            escaped <= PLAIN
        });
        let end = fit.map(char::len_utf8).sum();
        self.0[..end].chars().try_for_each(|c| match c {
            '\'' | '"' | '\\' => f.write_char(c),
            _ => write!(f, "{}", c.escape_debug()),
        })?;
        if end < self.0.len() { f.write_str("...") } else { Ok(()) }
    }
}

/// Displays a number of bytes with a decimal unit, such as `1.5 GB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TB", 1_000_000_000_000_u64), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        match units.into_iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_is_bounded_and_printable() {
        for text in ["", "a\"b\n", "\u{202e}\0", &"x".repeat(100_000), &"层".repeat(9_999)] {
            let shown = Plain(text).to_string();
            assert!(shown.len() < 320 + 10 && !shown.chars().any(char::is_control));
        }
        assert_eq!(Plain("C:\\a b\"\n").to_string(), "C:\\a b\"\\n");
        assert_eq!(Bytes(999_999).to_string(), "999999 bytes");
        assert_eq!(Bytes(1_500_000_000).to_string(), "1.5 GB");
    }
}
