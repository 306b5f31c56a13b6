//! [`to_width`]: a cell without its middle or its end.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Cut;

/// The lines of a tree, which come before a name.
const LINES: [char; 5] = [' ', '│', '├', '└', '─'];

/// `…` replaces the dropped part.
pub(super) fn to_width(cell: &str, width: usize, cut: Cut) -> Cow<'_, str> {
    if cut == Cut::Nothing || cell.width() <= width {
        return cell.into();
    }
    match cut {
        Cut::End => without_end(cell, width),
        Cut::Middle | Cut::Nothing => without_middle(cell, width),
    }
    .into()
}

/// Keeps a tree's lines, the start, and more of the end: the layer and the kind of parameter
/// distinguish names.
fn without_middle(cell: &str, width: usize) -> String {
    let (lines, name) = cell.split_at(cell.find(|c| !LINES.contains(&c)).unwrap_or(0));
    // Of a very deep branch only the end is kept, so that there is room for the name.
    let lines: Cow<'_, str> = match lines.width() {
        deep if deep > width * 2 / 3 => format!("…{}", end(lines, (width / 2).max(1) - 1)).into(),
        _ => lines.into(),
    };
    let room = width.saturating_sub(lines.width());
    if name.width() <= room {
        return format!("{lines}{name}");
    }
    let start = start(name, room / 3);
    let end = end(name, room.saturating_sub(start.width() + 1)).trim_start_matches('…');
    format!("{lines}{start}…{end}")
}

/// Keeps the length at the end of a long text's [`value`](crate::terminal::text::value).
fn without_end(cell: &str, width: usize) -> String {
    let note = cell.rfind("… (").map_or("…", |at| &cell[at..]);
    let note = if note.width() > width / 2 { "…" } else { note };
    let start = start(cell, width.saturating_sub(note.width())).trim_end_matches('…');
    format!("{start}{note}")
}

/// Returns the longest start of at most this many columns.
pub(crate) fn start(text: &str, width: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|&(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > width
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// The longest end of at most this many columns.
fn end(text: &str, width: usize) -> &str {
    let mut taken = 0;
    let start = text.char_indices().rev().find(|&(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > width
    });
    &text[start.map_or(0, |(at, c)| at + c.len_utf8())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn middle(cell: &str, width: usize) -> String {
        to_width(cell, width, Cut::Middle).into_owned()
    }

    #[test]
    fn the_middle_of_a_name_is_cut_and_more_of_its_end_is_kept() {
        let name = "encoder.layer.11.attention.output.dense.weight";
        assert_eq!(middle(name, 46), name);
        assert_eq!(middle(name, 45), "encoder.layer.1…attention.output.dense.weight");
        assert_eq!(middle(name, 20), "encode….dense.weight");
        assert_eq!(to_width(name, 20, Cut::Nothing), name);
        for width in 1..46 {
            assert!(middle(name, width).width() <= width, "{width}");
        }
    }

    #[test]
    fn the_lines_of_a_tree_are_kept() {
        let cell = "│  │  └─ self_attention.query_key_value.weight";
        assert_eq!(middle(cell, 30), "│  │  └─ self_at…_value.weight");
        // If there is little room, the lines next to the name are.
        let deep = format!("{}└─ weight", "│  ".repeat(20));
        assert_eq!(middle(&deep, 20), "…│  │  └─ weight");
        for width in 2..60 {
            assert!(middle(&deep, width).width() <= width, "{width}");
        }
    }

    #[test]
    fn wide_characters_are_never_split() {
        assert_eq!(middle("层层层层层层", 12), "层层层层层层");
        assert_eq!(middle("层层层层层层", 11), "层…层层层层");
        assert_eq!(middle("层层层层层层", 8), "层…层层");
        assert_eq!(to_width("层层层", 4, Cut::End), "层…");
    }

    #[test]
    fn the_start_of_a_text_and_its_length_are_kept() {
        let end = |cell, width| to_width(cell, width, Cut::End).into_owned();
        assert_eq!(end("a description", 10), "a descrip…");
        assert_eq!(end("vvvvvvvvvvvvvvvvvv… (5,000 bytes)", 31), "vvvvvvvvvvvvvvvv… (5,000 bytes)");
        // Not if there would be little else.
        assert_eq!(end("vvvvvvvvvvvvvvvvvv… (5,000 bytes)", 20), "vvvvvvvvvvvvvvvvvv…");
    }

    #[test]
    fn a_shortened_text_has_one_ellipsis() {
        assert_eq!(middle("vvvvvvvvvvvvvvv… (5,000 bytes)", 23), "vvvvvvv… (5,000 bytes)");
    }
}
