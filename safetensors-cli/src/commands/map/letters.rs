//! [`Letters`]: the letters that a picture can have, and labels that fit.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};
use unicode_width::UnicodeWidthStr;

use crate::terminal::text;

/// The sizes of letters. All letters have the same width: 0.6 of their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    Small,
    Large,
}

impl Size {
    pub(super) fn height(self) -> f64 {
        match self {
            Self::Small => 12.0,
            Self::Large => 16.0,
        }
    }

    /// The width of each letter.
    pub(super) fn width(self) -> f64 {
        self.height() * 0.6
    }
}

/// The letters that a format can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letters {
    /// All of them: the program that shows the picture has fonts.
    All,
    /// Those of the bitmap font that PNG pictures are written with: Latin letters and a few signs.
    Bitmap,
}

impl Letters {
    /// Text in letters that can be shown. Other letters are transliterated: `层` becomes `Ceng`.
    /// Where nothing comes close, they are escaped.
    pub(super) fn spell(self, text: &str) -> String {
        match self {
            Self::All => text.to_owned(),
            Self::Bitmap => text.chars().map(spell).collect(),
        }
    }

    /// Makes a name printable and shortens it to a width, at its last separator if that is enough.
    /// `None` if there is no room for a few letters.
    pub(super) fn fit(
        self,
        name: &str,
        separator: Option<char>,
        width: f64,
        size: Size,
    ) -> Option<String> {
        const FEWEST: usize = 4;
        let room = (width / size.width()).max(0.0) as usize;
        let name = self.spell(&text::name(name));
        if name.width() <= room {
            return Some(name);
        }
        // A name without its end, `weight` or `bias`, still identifies the module.
        let parts = separator
            .and_then(|separator| name.rsplit_once(separator))
            .map(|(start, _)| start)
            .filter(|start| start.width() <= room && !start.is_empty());
        match parts {
            Some(start) => Some(start.to_owned()),
            None if room >= FEWEST => Some(start_of(&name, room - 2) + ".."),
            None => None,
        }
    }
}

/// The width of a line of text, in the picture's units.
pub(super) fn width(text: &str, size: Size) -> f64 {
    text.width() as f64 * size.width()
}

/// Whether the bitmap font has a letter, in both sizes.
fn is_in_font(c: char) -> bool {
    [RasterHeight::Size24, RasterHeight::Size32]
        .into_iter()
        .all(|height| get_raster(c, FontWeight::Regular, height).is_some())
}

fn spell(c: char) -> String {
    if is_in_font(c) {
        return c.into();
    }
    match deunicode::deunicode_char(c).map(str::trim).filter(|plain| !plain.is_empty()) {
        Some(plain) => plain.to_owned(),
        None => c.escape_unicode().to_string(),
    }
}

/// The first letters, of a width of at most `room`.
fn start_of(text: &str, room: usize) -> String {
    let fits = |&(end, c): &(usize, char)| text[..end + c.len_utf8()].width() <= room;
    text.char_indices().take_while(fits).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit_or_are_left_out() {
        let fit = |name, separator, letters: f64| {
            let width = letters * Size::Small.width() + 0.01;
            Letters::All.fit(name, separator, width, Size::Small)
        };
        let label = |letters| fit("q_proj.weight", Some('.'), letters);
        assert_eq!(label(13.0).as_deref(), Some("q_proj.weight"));
        assert_eq!(label(12.0).as_deref(), Some("q_proj"));
        assert_eq!(label(5.0).as_deref(), Some("q_p.."));
        assert_eq!(label(3.0), None);
        assert_eq!(fit("q/kernel.x", Some('/'), 8.0).as_deref(), Some("q"));
        assert_eq!(fit("Llama 3.1 8B", None, 10.0).as_deref(), Some("Llama 3..."));
        assert_eq!(fit("a\u{202e}", Some('.'), 100.0).as_deref(), Some("a\\u{202e}"));
        assert_eq!(fit("abc", Some('.'), -1.0), None);
        // Wide letters take the room of two.
        assert_eq!(fit("注意力机制", None, 10.0).as_deref(), Some("注意力机制"));
        assert_eq!(fit("注意力机制", None, 9.0).as_deref(), Some("注意力.."));
    }

    #[test]
    fn the_bitmap_font_gets_letters_that_it_has() {
        let spelt = Letters::Bitmap.spell("naïve.层0…31 – ×6 λ \u{10ffff}");
        assert_eq!(spelt, "naïve.Ceng0...31 - ×6 l \\u{10ffff}");
        assert!(spelt.chars().all(is_in_font));
        assert_eq!(Letters::All.spell("层…"), "层…");
    }
}
