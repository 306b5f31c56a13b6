//! JSON for programs that people can read too: indented, with unprintable characters escaped.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::terminal::text;

/// Writes a value as one JSON document and a line end.
pub(crate) fn write(value: &impl Serialize, mut out: &mut impl Write) -> anyhow::Result<()> {
    value
        .serialize(&mut Serializer::with_formatter(&mut out, Printable(PrettyFormatter::new())))?;
    Ok(writeln!(out)?)
}

/// A value as JSON in one line.
pub(crate) fn inline(value: &impl Serialize) -> anyhow::Result<String> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, Printable(CompactFormatter)))?;
    Ok(String::from_utf8(json)?)
}

/// Writes characters that could control a terminal as `\u` escapes, which JSON does not require.
struct Printable<F>(F);

impl<F: Formatter> Formatter for Printable<F> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|&(_, c)| !text::is_printable(c)) {
            out.write_all(&fragment.as_bytes()[plain..at])?;
            plain = at + c.len_utf8();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(out, escape)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped_and_reads_back() {
        let hostile = "a\u{1b}\u{7f}\u{9b}\u{202e}层\"\\\n\u{e0001}";
        let mut json = Vec::new();
        write(&hostile, &mut json).unwrap();
        let shown = String::from_utf8(json).unwrap();
        assert_eq!(shown, "\"a\\u001b\\u007f\\u009b\\u202e层\\\"\\\\\\n\\udb40\\udc01\"\n");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
    }
}
