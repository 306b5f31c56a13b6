//! JSON for programs and people: indented, with unprintable characters escaped.

use std::io::{self, Write};

use serde::Serialize;

use crate::terminal::text;

/// Writes a value as one JSON document and a line end.
pub(crate) fn write(value: &impl Serialize, mut out: &mut impl Write) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(Escaping(&mut out, is_hidden), value)?;
    Ok(writeln!(out)?)
}

/// A value as JSON in one line.
pub(crate) fn inline(value: &impl Serialize) -> anyhow::Result<String> {
    let mut json = Vec::new();
    serde_json::to_writer(Escaping(&mut json, is_hidden), value)?;
    Ok(String::from_utf8(json)?)
}

/// Returns `true` for characters that could control a terminal, except line ends between strings.
fn is_hidden(c: char) -> bool {
    c != '\n' && !text::is_printable(c)
}

/// Writes the characters that the function chooses as `\u` escapes, which JSON does not require.
pub(crate) struct Escaping<W>(pub(crate) W, pub(crate) fn(char) -> bool);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        // A write has whole characters. A string has no line ends, which are escaped.
        let text = std::str::from_utf8(json).map_err(io::Error::other)?;
        let mut plain = 0;
        for (at, c) in text.char_indices().filter(|&(_, c)| self.1(c)) {
            self.0.write_all(&json[plain..at])?;
            plain = at + c.len_utf8();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
        }
        self.0.write_all(&json[plain..])?;
        Ok(json.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_escaped_and_read_back() {
        let hostile = "a\u{1b}\u{7f}\u{9b}\u{202e}层\"\\\n\u{e0001}";
        let mut json = Vec::new();
        write(&hostile, &mut json).unwrap();
        let shown = String::from_utf8(json).unwrap();
        assert_eq!(shown, "\"a\\u001b\\u007f\\u009b\\u202e层\\\"\\\\\\n\\udb40\\udc01\"\n");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
    }
}
