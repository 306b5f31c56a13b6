//! Text for people: names from files made safe to print, numbers made easy to read.
//!
//! A name may hold anything: terminal escapes, line breaks, characters that reverse the direction of the text. Nothing that
//! comes from a file is printed in any other way than through here.

use std::fmt::{self, Display, Write};
use std::path::Path;

/// The most characters of a name, a key or a shape that a table shows.
const MAX_NAME: usize = 120;

/// The most characters of a metadata value that a table shows.
const MAX_VALUE: usize = 80;

/// A name or key, on one line, so that two different short names never look alike.
///
/// Control, bidirectional and other characters that are not printable are escaped as in Rust, and so is the backslash. A name
/// that is empty, starts with a quote, or starts or ends with a space is quoted. The middle of a very long one is left out.
pub(crate) fn name(name: &str) -> String {
    // Nearly every name in nearly every file; a checkpoint may have a hundred thousand.
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain) {
        return name.to_owned();
    }
    let quoted = name.is_empty() || name.starts_with([' ', '"']) || name.ends_with(' ');
    let pieces = |c: char| match c {
        '"' if !quoted => c.to_string(),
        '\'' => c.to_string(),
        _ => escaped(c),
    };
    let text = shorten(name, MAX_NAME, pieces);
    if quoted { format!("\"{text}\"") } else { text }
}

/// A metadata value on one line, escaped as a [`name`] is. Only the start of a long one is shown, with its length.
pub(crate) fn value(value: &str) -> String {
    let mut text = String::new();
    let mut shown = 0;
    for c in value.chars() {
        let piece = if matches!(c, '"' | '\'') { c.to_string() } else { escaped(c) };
        shown += piece.chars().count();
        if shown > MAX_VALUE {
            return format!("{text}… ({} bytes)", count(value.len() as u64));
        }
        text.push_str(&piece);
    }
    text
}

/// A path, escaped like a [`name`] but whole, and with backslashes as they are.
pub(crate) fn path(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

/// A message with everything escaped that is not printable; quotes and backslashes stay.
pub(crate) fn printable(message: &str) -> impl Display {
    struct Printable<'a>(&'a str);

    impl Display for Printable<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.chars().try_for_each(|c| match c {
                '"' | '\'' | '\\' => f.write_char(c),
                _ => f.write_str(&escaped(c)),
            })
        }
    }

    Printable(message)
}

/// A shape such as `[768, 3072]`; `[]` is a scalar. The middle of one of very many dimensions is left out.
pub(crate) fn shape(dims: &[usize]) -> String {
    // Shapes are as short as this but in hostile files, whose shapes are not worth their full text.
    const MAX_DIMS: usize = 12;
    let join = |dims: &[usize]| dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if dims.len() <= MAX_DIMS {
        return format!("[{}]", join(dims));
    }
    let (start, end) = (&dims[..MAX_DIMS / 2], &dims[dims.len() - MAX_DIMS / 2..]);
    format!("[{}, …, {}] (rank {})", join(start), join(end), count(dims.len() as u64))
}

/// A number with commas between thousands: `22,713,728`.
pub(crate) fn count(number: impl Into<u128>) -> String {
    let digits = number.into().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things: `1 tensor`, `2 tensors`.
pub(crate) fn counted(number: impl Into<u128>, thing: &str) -> String {
    let number = number.into();
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// A measured number with four digits that count: `0.02134`, `-1.5`, `3.052e-5`; whole numbers of up to seven digits in full.
pub(crate) fn number(number: f64) -> String {
    let magnitude = number.abs();
    if number == number.trunc() && magnitude < 1e7 {
        return format!("{}", number + 0.0);
    }
    if !(1e-4..1e6).contains(&magnitude) {
        return if number.is_finite() { format!("{number:.3e}") } else { format!("{number}") };
    }
    // The digits before the point, or minus the zeros after it.
    let exponent = magnitude.log10().floor() as i32;
    let decimals = usize::try_from(3 - exponent).unwrap_or_default();
    let text = format!("{number:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// A number of bytes in decimal units, as the Hub writes sizes: `512 B`, `90.9 MB`.
pub(crate) fn size(bytes: impl Into<u128>) -> String {
    let bytes = bytes.into();
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut unit = 1_u128;
    for name in ["kB", "MB", "GB", "TB", "PB"] {
        unit *= 1000;
        // Rounded to tenths before it is compared, so that 999,999 bytes are 1.0 MB and not 1000.0 kB.
        let tenths = rounded_tenths(bytes, unit);
        if tenths < 10_000 {
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
    }
    let tenths = rounded_tenths(bytes, unit * 1000);
    format!("{}.{} EB", count(tenths / 10), tenths % 10)
}

fn rounded_tenths(bytes: u128, unit: u128) -> u128 {
    let tenth = unit / 10;
    bytes / tenth + u128::from(bytes % tenth >= tenth / 2)
}

/// Whether a character is shown as it is, quotes and backslashes among them.
pub(crate) fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || escaped(c).chars().eq([c])
}

/// One character, escaped if it is a quote, a backslash, or not printable.
fn escaped(c: char) -> String {
    match c {
        // Letters and symbols by category, but blank on the screen: two names that differ only there would look alike.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => c.escape_unicode().to_string(),
        _ => c.escape_debug().to_string(),
    }
}

/// `text` in pieces, one a character; if they have more than `max` characters, the start and the end of them.
fn shorten(text: &str, max: usize, piece: impl Fn(char) -> String) -> String {
    // Escaped text is never shorter, so whole pieces that fit come from at most `max` characters of `text`.
    let mut start: Vec<_> = text.chars().take(max + 1).map(&piece).collect();
    if start.len() <= max && length(&start) <= max {
        return start.concat();
    }
    // What tells names of one model apart, the layer and the kind of parameter, stands rather at the end.
    let keep_start = max / 3;
    let mut end: Vec<_> = text.chars().rev().take(max).map(&piece).collect();
    keep(&mut end, max - keep_start - 1);
    end.reverse();
    keep(&mut start, keep_start);
    format!("{}…{}", start.concat(), end.concat())
}

/// Drops pieces from the end until the others have at most `max` characters.
fn keep(pieces: &mut Vec<String>, max: usize) {
    let mut total = 0;
    let fits = pieces.iter().take_while(|piece| {
        total += piece.chars().count();
        total <= max
    });
    let fits = fits.count();
    pieces.truncate(fits);
}

fn length(pieces: &[String]) -> usize {
    pieces.iter().map(|piece| piece.chars().count()).sum()
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
        assert_eq!(value("a\"b'\r\n"), r#"a"b'\r\n"#);
    }

    #[test]
    fn different_names_look_different() {
        let alike =
            ["", "\"\"", " ", "a", "a ", " a", "\"a\"", "\n", "\\n", "\u{200b}", "a\u{200b}", "it's", "say \"a\""];
        let shown: std::collections::BTreeSet<_> = alike.iter().map(|n| name(n)).collect();
        assert_eq!(shown.len(), alike.len(), "{shown:?}");
        assert!(shown.contains("it's") && shown.contains("say \"a\"") && shown.contains(r#""a ""#), "{shown:?}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        let exact = "x".repeat(MAX_NAME);
        assert_eq!(name(&exact), exact);
        let long = format!("model.{}.weight", "layer.".repeat(1000));
        let shown = name(&long);
        assert_eq!(shown.chars().count(), MAX_NAME);
        assert!(shown.starts_with("model.layer.") && shown.contains('…') && shown.ends_with(".weight"), "{shown}");
        // Escapes are kept whole or left out.
        let shown = name(&"\u{202e}".repeat(50));
        assert!(shown.chars().count() <= MAX_NAME);
        assert_eq!(shown.replace(r"\u{202e}", ""), "…");
    }

    #[test]
    fn long_values_say_their_length() {
        assert_eq!(value(&"v".repeat(MAX_VALUE)), "v".repeat(MAX_VALUE));
        assert_eq!(value(&"v".repeat(5000)), format!("{}… (5,000 bytes)", "v".repeat(MAX_VALUE)));
    }

    #[test]
    fn shapes() {
        assert_eq!(shape(&[]), "[]");
        assert_eq!(shape(&[0]), "[0]");
        assert_eq!(shape(&[30522, 384]), "[30522, 384]");
        assert_eq!(shape(&[1; 5000]), "[1, 1, 1, 1, 1, 1, …, 1, 1, 1, 1, 1, 1] (rank 5,000)");
    }

    #[test]
    fn counts() {
        assert_eq!(count(0_u64), "0");
        assert_eq!(count(999_u64), "999");
        assert_eq!(count(1000_u64), "1,000");
        assert_eq!(count(22_713_728_u64), "22,713,728");
        assert_eq!(counted(1_u64, "tensor"), "1 tensor");
        assert_eq!(counted(0_u64, "tensor"), "0 tensors");
    }

    #[test]
    fn measured_numbers() {
        let shown =
            [0.0, -0.0, 1.5, -0.0213456, 0.5, 123.456, 99_999.6, 3.05e-5, 1e300, 1234567.0, f64::NAN, f64::INFINITY];
        let shown = shown.map(number);
        let expected =
            ["0", "0", "1.5", "-0.02135", "0.5", "123.5", "100000", "3.050e-5", "1.000e300", "1234567", "NaN", "inf"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn sizes_round_before_the_unit_is_chosen() {
        assert_eq!(size(0_u64), "0 B");
        assert_eq!(size(999_u64), "999 B");
        assert_eq!(size(1000_u64), "1.0 kB");
        assert_eq!(size(1049_u64), "1.0 kB");
        assert_eq!(size(1050_u64), "1.1 kB");
        assert_eq!(size(999_949_u64), "999.9 kB");
        assert_eq!(size(999_950_u64), "1.0 MB");
        assert_eq!(size(90_856_960_u64), "90.9 MB");
        assert_eq!(size(u64::MAX), "18.4 EB");
        assert_eq!(size(u128::from(u64::MAX) * 1000), "18,446.7 EB");
    }
}
