//! Displays text from files in messages: escaped, on one line, of bounded length.

use alloc::string::{String, ToString};
use core::fmt::{self, Write};

/// The most bytes of a name, with its escapes.
// Only messages are shortened, so that a name of megabytes does not fill a terminal or a log. The
// error itself holds names and shapes in full, and a program can look them up.
const QUOTED: usize = 160;

/// The most bytes of a long text's start and, more specific, end.
const ESCAPED: (usize, usize) = (160, 320);

/// The most dimensions of a whole shape, and at each end of a longer one.
const DIMS: (usize, usize) = (8, 4);

/// The most names, and the number of bytes after which the list ends.
const NAMES: (usize, usize) = (8, 320);

const EXCERPT: usize = 120;

/// Displays a text escaped, without quotes and without the middle of a long text.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let (start, end) = ESCAPED;
        let (head, tail) = if fitting(text.chars(), start + end) == text.len() {
            (text, "")
        } else {
            let head = fitting(text.chars(), start);
            let tail = fitting(text[head..].chars().rev(), end);
            (&text[..head], &text[text.len() - tail..])
        };
        head.chars().try_for_each(|c| write_escaped(f, c))?;
        if head.len() < text.len() {
            f.write_str("...")?;
        }
        tail.chars().try_for_each(|c| write_escaped(f, c))
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '\'' | '"' | '\\' => f.write_char(c),
        _ => write!(f, "{}", c.escape_debug()),
    }
}

/// Displays a text quoted and escaped. Cuts a long text to 160 bytes, and adds its length.
///
/// ```
/// use safetensors_core::framework::Quoted;
///
/// assert_eq!(Quoted("a\nb").to_string(), r#""a\nb""#);
/// assert!(Quoted(&"n".repeat(1_000)).to_string().ends_with(r#"n"... (1000 bytes)"#));
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match fitting(self.0.chars(), QUOTED) {
            end if end == self.0.len() => write!(f, "{:?}", self.0),
            end => write!(f, "{:?}... ({} bytes)", &self.0[..end], self.0.len()),
        }
    }
}

/// Returns how much of the text takes at most `max` bytes escaped.
fn fitting(chars: impl Iterator<Item = char>, max: usize) -> usize {
    let mut escaped = 0;
    let fit = chars.take_while(|c| {
        escaped += c.escape_debug().map(char::len_utf8).sum::<usize>();
        escaped <= max
    });
    fit.map(char::len_utf8).sum()
}

pub(crate) struct Shape<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.0;
        let (most, ends) = DIMS;
        if dims.len() <= most {
            return write!(f, "{dims:?}");
        }
        f.write_char('[')?;
        dims[..ends].iter().try_for_each(|dim| write!(f, "{dim}, "))?;
        f.write_str("...")?;
        dims[dims.len() - ends..].iter().try_for_each(|dim| write!(f, ", {dim}"))?;
        write!(f, "] of {} dimensions", dims.len())
    }
}

/// Displays at most eight names, quoted and shortened, and the number of the others.
///
/// ```
/// use safetensors_core::framework::NameList;
///
/// let names: Vec<String> = (0..10).map(|i| format!("layer.{i}")).collect();
/// assert_eq!(NameList(&names[..2]).to_string(), r#""layer.0", "layer.1""#);
/// assert!(NameList(&names).to_string().ends_with(r#""layer.7" and 2 more"#));
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct NameList<'a>(pub &'a [String]);

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut bytes = 0;
        let shown = self.0.iter().take(NAMES.0).take_while(|name| {
            let is_room = bytes <= NAMES.1;
            bytes += name.len();
            is_room
        });
        let shown = shown.enumerate().try_fold(0, |_, (i, name)| {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, Quoted(name))?;
            Ok(i + 1)
        })?;
        match self.0.len() - shown {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

pub(crate) fn excerpt(text: &str) -> String {
    match text.floor_char_boundary(EXCERPT) {
        end if end == text.len() => text.into(),
        end => text[..end].to_string() + "...",
    }
}

/// As `Error(...)` of at most 4 KiB, for `{:#?}`.
pub(crate) fn debug_fields(inner: &dyn fmt::Debug, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const MOST: usize = 4096;
    let mut out = Capped { out: &mut *f, left: MOST };
    match write!(out, "Error({inner:#?})") {
        Err(_) if out.left == 0 => f.write_str("..."),
        written => written,
    }
}

/// Writes the first `left` bytes and then fails, which stops formatting a huge value.
struct Capped<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    left: usize,
}

impl Write for Capped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(self.left);
        self.left -= end;
        self.out.write_str(&text[..end])?;
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_shown_bounded_and_printable() {
        for c in ["a", "\"", "\\", "'", "\0", "\u{202e}", "\u{10ffff}", "层", "\u{300}"] {
            for len in [0, 1, 159, 160, 161, 500, 100_000] {
                let text = c.repeat(len);
                let (escaped, quoted) = (Escaped(&text).to_string(), Quoted(&text).to_string());
                assert!(escaped.len() <= 480 + 3, "{c:?} {len}: {}", escaped.len());
                assert!(quoted.len() <= 160 + 2 + 20, "{c:?} {len}: {}", quoted.len());
                assert!(!(escaped + &quoted).chars().any(char::is_control));
                let kept = excerpt(&text);
                assert!(kept.len() <= 123 && (kept == text || kept.ends_with("...")));
            }
        }
        let path = format!("/start/{}/end", "x".repeat(1_000));
        let shown = Escaped(&path).to_string();
        assert!(shown.starts_with("/start/xx") && shown.contains("x...x"), "{shown}");
        assert!(shown.ends_with("xx/end"), "{shown}");
    }

    #[test]
    fn only_long_text_is_shortened() {
        assert_eq!(Escaped("it's \"a\\b\"\n").to_string(), r#"it's "a\b"\n"#);
        assert_eq!(Quoted("model.0").to_string(), r#""model.0""#);
        let long = Quoted(&"n".repeat(161)).to_string();
        assert_eq!(long, format!("{:?}... (161 bytes)", "n".repeat(160)));
    }

    #[test]
    fn shapes_show_both_ends() {
        assert_eq!(Shape(&[]).to_string(), "[]");
        assert_eq!(Shape(&[1, 2, 3, 4, 5, 6, 7, 8]).to_string(), "[1, 2, 3, 4, 5, 6, 7, 8]");
        let shape: [usize; 1000] = core::array::from_fn(|i| i);
        let shown = "[0, 1, 2, 3, ..., 996, 997, 998, 999] of 1000 dimensions";
        assert_eq!(Shape(&shape).to_string(), shown);
        assert!(Shape(&[usize::MAX; 9]).to_string().len() < 210);
    }

    #[test]
    fn long_names_make_short_lists() {
        let long: [String; 9] = core::array::from_fn(|_| "n".repeat(1_000_000));
        let shown = NameList(&long).to_string();
        assert!(shown.len() < 250 && shown.ends_with(" and 8 more"), "{shown}");
        assert!(NameList(&long[..1]).to_string().ends_with("... (1000000 bytes)"));
        assert_eq!(NameList(&[]).to_string(), "none");
    }
}
