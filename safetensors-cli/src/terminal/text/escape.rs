//! Names, values and paths, made safe to print.

use std::fmt::{self, Display, Write};
use std::path::Path;

use super::count;
use crate::terminal::screen;

/// The most characters of a name or key in a message, or a table on a terminal.
const MAX_NAME: usize = 120;

/// The most characters of a metadata value in a table on a terminal.
const MAX_VALUE: usize = 80;

/// A name or key on one line. Two different short names never look alike.
///
/// Backslashes and control, bidirectional and other unprintable characters are escaped as in Rust.
/// A name is quoted if it is empty, starts with a quote, or has a space at an end. A terminal shows
/// a very long name without its middle.
pub(crate) fn name(name: &str) -> String {
    within(name, if screen::is_for_programs() { usize::MAX - 1 } else { MAX_NAME })
}

/// A [`name`] for a message, always without the middle of a very long one.
pub(crate) fn short(name: &str) -> String {
    within(name, MAX_NAME)
}

/// A [`name`] of at most this many characters.
fn within(name: &str, most: usize) -> String {
    // A fast path for nearly every name: a checkpoint may have a hundred thousand.
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if (1..=most).contains(&name.len()) && name.bytes().all(plain) {
        return name.to_owned();
    }
    let quoted = name.is_empty() || name.starts_with([' ', '"']) || name.ends_with(' ');
    let pieces = |c: char| match c {
        '"' if !quoted => c.to_string(),
        '\'' => c.to_string(),
        _ => escape(c),
    };
    let text = shorten(name, most, pieces);
    if quoted { format!("\"{text}\"") } else { text }
}

/// Returns the first of these names, and the number of others.
pub(crate) fn some<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<_> = names.by_ref().take(3).map(|it| short(it.as_ref())).collect();
    let shown = shown.join(", ");
    match names.count() as u64 {
        0 => shown,
        more => format!("{shown} and {} more", super::count(more)),
    }
}

/// A metadata value on one line, escaped like a [`name`]. A terminal shows only the start of a long
/// one, with the length.
pub(crate) fn value(value: &str) -> String {
    value_within(value, if screen::is_for_programs() { usize::MAX } else { MAX_VALUE })
}

/// Like [`value`], of at most `most` characters.
pub(crate) fn value_within(value: &str, most: usize) -> String {
    let mut text = String::new();
    let mut shown = 0;
    for c in value.chars() {
        let piece = if matches!(c, '"' | '\'') { c.to_string() } else { escape(c) };
        shown += piece.chars().count();
        if shown > most {
            return format!("{text}… ({} bytes)", count(value.len() as u64));
        }
        text.push_str(&piece);
    }
    text
}

/// A whole text on one line, escaped like a [`value`]. Two different texts never look alike.
pub(crate) fn escaped(text: &str) -> impl Display {
    shown(text, &['"', '\''])
}

/// A whole path, escaped like a [`name`], but with plain backslashes.
pub(crate) fn path(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

/// A whole path for JSON, not escaped. Replaces bytes that are not UTF-8.
pub(crate) fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A message with unprintable characters escaped, but plain quotes and backslashes.
pub(crate) fn printable(message: &str) -> impl Display {
    shown(message, &['"', '\'', '\\'])
}

/// Escapes all but the `kept` quotes and backslashes.
fn shown(text: &str, kept: &'static [char]) -> impl Display {
    struct Escaped<'a>(&'a str, &'static [char]);

    impl Display for Escaped<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.chars().try_for_each(|c| match c {
                kept if is_plain(kept) || self.1.contains(&kept) => f.write_char(kept),
                _ => f.write_str(&escape(c)),
            })
        }
    }

    Escaped(text, kept)
}

/// Quotes and backslashes count as printable.
pub(crate) fn is_printable(c: char) -> bool {
    is_plain(c) || matches!(c, '"' | '\'' | '\\') || escape(c).chars().eq([c])
}

/// Nearly all characters need no further check.
fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~' if !matches!(c, '"' | '\'' | '\\'))
}

fn escape(c: char) -> String {
    match c {
        // Unicode classes these as letters and symbols, but they are blank on the screen. Two names
        // that differ only in them would look alike.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => {
            c.escape_unicode().to_string()
        }
        _ => c.escape_debug().to_string(),
    }
}

/// Keeps the start and the end of more than `max` characters.
fn shorten(text: &str, max: usize, piece: impl Fn(char) -> String) -> String {
    let start = fitting(text.chars().map(&piece), max);
    if text.chars().nth(start.len()).is_none() {
        return start.concat();
    }
    // The end gets more room: its layer and kind of parameter distinguish names.
    let start = fitting(start.into_iter(), max / 3);
    let mut end = fitting(text.chars().rev().map(piece), max - max / 3 - 1);
    end.reverse();
    format!("{}…{}", start.concat(), end.concat())
}

/// Returns the first pieces with at most `max` characters together.
fn fitting(pieces: impl Iterator<Item = String>, max: usize) -> Vec<String> {
    let mut total = 0;
    let fits = |piece: &String| {
        total += piece.chars().count();
        total <= max
    };
    pieces.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_are_escaped() {
        assert_eq!(name("a\u{1b}[31mred"), r"a\u{1b}[31mred");
        assert_eq!(name("a\nb\tc\0"), r"a\nb\tc\0");
        assert_eq!(name("\u{202e}abc\u{2066}\u{200b}"), r"\u{202e}abc\u{2066}\u{200b}");
        assert_eq!(name("a\u{300}\u{a0}\u{9b}\u{3164}"), r"a\u{300}\u{a0}\u{9b}\u{3164}");
        assert_eq!(name("naïve.层.weight"), "naïve.层.weight");
        assert_eq!(printable("\"a\\b\": \u{7}\u{202e}").to_string(), r#""a\b": \u{7}\u{202e}"#);
        assert_eq!(path(Path::new("a\u{1b}/b'.safetensors")), r"a\u{1b}/b'.safetensors");
        assert_eq!(escaped("\"it's\" a\\n\n").to_string(), r#""it's" a\\n\n"#);
        assert_eq!(value("a\"b'\r\n"), r#"a"b'\r\n"#);
    }

    #[test]
    fn different_names_look_different() {
        let alike = [
            "",
            "\"\"",
            " ",
            "a",
            "a ",
            " a",
            "\"a\"",
            "\n",
            "\\n",
            "\u{200b}",
            "a\u{200b}",
            "it's",
            "say \"a\"",
        ];
        let shown: std::collections::BTreeSet<_> = alike.iter().map(|n| name(n)).collect();
        assert_eq!(shown.len(), alike.len(), "{shown:?}");
        assert!(
            shown.contains("it's") && shown.contains("say \"a\"") && shown.contains(r#""a ""#),
            "{shown:?}"
        );
    }

    #[test]
    fn long_names_keep_both_ends() {
        let exact = "x".repeat(MAX_NAME);
        assert_eq!(short(&exact), exact);
        let long = format!("model.{}.weight", "layer.".repeat(1000));
        let shown = short(&long);
        assert_eq!(shown.chars().count(), MAX_NAME);
        assert!(
            shown.starts_with("model.layer.") && shown.contains('…') && shown.ends_with(".weight"),
            "{shown}"
        );
        // Escapes are kept completely or dropped.
        let shown = short(&"\u{202e}".repeat(50));
        assert!(shown.chars().count() <= MAX_NAME);
        assert_eq!(shown.replace(r"\u{202e}", ""), "…");
    }

    #[test]
    fn long_values_are_cut_and_show_their_length() {
        let within = |value: &str| value_within(value, MAX_VALUE);
        assert_eq!(within(&"v".repeat(MAX_VALUE)), "v".repeat(MAX_VALUE));
        assert_eq!(within(&"v".repeat(5000)), format!("{}… (5,000 bytes)", "v".repeat(MAX_VALUE)));
        assert_eq!(
            (value_within("é\n", 3), value_within("é\nb", 3)),
            ("é\\n".into(), "é\\n… (4 bytes)".into())
        );
    }
}
