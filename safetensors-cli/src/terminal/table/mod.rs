//! Tables: columns under a rule for people, lines with tabs between cells for programs.
//!
//! | file | content |
//! |---|---|
//! | `fit` | the widths of the columns on a terminal |
//! | `shorten` | a cell without its middle or its end |

mod fit;
mod shorten;

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io::{self, Write};

pub(crate) use shorten::start;
use unicode_width::UnicodeWidthStr;

use crate::terminal::screen;

/// The spaces between two columns.
const GAP: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'t> {
    title: &'t str,
    /// Whether cells are at the right, as numbers are.
    is_right: bool,
    cut: Cut,
    /// The highest rank is hidden first, 0 never. `None` ranks by position: the last is hidden
    /// first.
    rank: Option<u8>,
    /// Hide other columns before different cells are shortened to the same text.
    is_distinct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Nothing,
    Middle,
    End,
}

impl<'t> Column<'t> {
    /// Names or paths, which are shortened in the middle.
    pub(crate) const fn name(title: &'t str) -> Self {
        Self { title, is_right: false, cut: Cut::Middle, rank: None, is_distinct: false }
    }

    /// Texts, which are shortened at the end.
    pub(crate) const fn text(title: &'t str) -> Self {
        Self { cut: Cut::End, ..Self::name(title) }
    }

    /// Short words, which are never shortened.
    pub(crate) const fn word(title: &'t str) -> Self {
        Self { cut: Cut::Nothing, ..Self::name(title) }
    }

    /// Numbers, which are never shortened.
    pub(crate) const fn number(title: &'t str) -> Self {
        Self { is_right: true, ..Self::word(title) }
    }

    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// Hides other columns if different names would be shortened to the same text, and that helps.
    pub(crate) const fn distinct(self) -> Self {
        Self { is_distinct: true, ..self }
    }
}

/// Writes printable rows: see [`text`](crate::terminal::text). On a terminal, long names are
/// shortened and columns hidden, marked by a `…` after the titles. A file or a pipe gets
/// everything, with a tab between two cells.
///
/// `rows` must give the same rows at each call.
// The first call measures, the last writes, and the calls between look for names that are shortened
// to the same text. No row is kept, because a checkpoint may have a million tensors.
pub(crate) fn write(
    columns: &[Column<'_>],
    out: &mut impl Write,
    rows: impl Fn(&mut Rows<'_>),
) -> io::Result<()> {
    write_within(screen::table_width(), columns, out, rows)
}

/// Columns, each with the function that makes its cells.
pub(crate) type Columns<'c, T> = [(Column<'c>, &'c dyn Fn(&T) -> String)];

/// [`write()`] with a row for each item.
pub(crate) fn list<T>(
    items: impl Iterator<Item = T> + Clone,
    columns: &Columns<'_, T>,
    out: &mut impl Write,
) -> io::Result<()> {
    let titles: Vec<_> = columns.iter().map(|(column, _)| *column).collect();
    write(&titles, out, |rows| {
        for item in items.clone() {
            rows.row(columns.iter().map(|(_, cell)| cell(&item)));
        }
    })
}

/// [`write()`] for lines of this width; `None` is for programs.
fn write_within(
    width: Option<usize>,
    columns: &[Column<'_>],
    out: &mut impl Write,
    rows: impl Fn(&mut Rows<'_>),
) -> io::Result<()> {
    let titles = columns.iter().map(|column| Some(column.title.width())).collect();
    let mut all = Rows { columns, widths: titles, to: To::Measure, outcome: Ok(()) };
    let Some(width) = width else {
        all.to = To::Separate(out);
        all.row(columns.iter().map(|column| column.title));
        rows(&mut all);
        return all.outcome;
    };
    rows(&mut all);
    let natural: Vec<_> = all.widths.iter().map(|width| width.unwrap_or(0)).collect();
    all.widths = fit_distinct(columns, &natural, width, &rows);
    let is_less = all.widths.contains(&None);
    all.to = To::Write(out);
    let titles = all.cells(columns.iter().map(|column| column.title));
    all.line(&if is_less { format!("{titles}  …") } else { titles.trim_end().to_owned() });
    let kept: Vec<_> = all.widths.iter().flatten().collect();
    let total = kept.iter().copied().sum::<usize>() + GAP * kept.len().saturating_sub(1);
    all.line(&"─".repeat(total + if is_less { fit::MARK } else { 0 }));
    rows(&mut all);
    all.outcome
}

/// Hides more columns where that distinguishes names.
fn fit_distinct(
    columns: &[Column<'_>],
    natural: &[usize],
    width: usize,
    rows: &impl Fn(&mut Rows<'_>),
) -> Vec<Option<usize>> {
    let first = fit::fit(columns, natural, width, columns.len());
    let Some(names) = columns.iter().position(|column| column.is_distinct) else { return first };
    let mut widths = first.clone();
    loop {
        let Some(shown) = widths[names].filter(|&shown| shown < natural[names]) else {
            return widths;
        };
        let seen =
            Seen { column: names, width: shown, full: HashSet::new(), shortened: HashSet::new() };
        let mut all = Rows { columns, widths: Vec::new(), to: To::Compare(seen), outcome: Ok(()) };
        rows(&mut all);
        if matches!(all.to, To::Compare(seen) if seen.full.len() == seen.shortened.len()) {
            return widths;
        }
        let kept = widths.iter().flatten().count();
        widths = fit::fit(columns, natural, width, kept - 1);
        // Not even all of the row is enough.
        if widths.iter().flatten().count() == kept {
            return first;
        }
    }
}

pub(crate) struct Rows<'t> {
    columns: &'t [Column<'t>],
    /// `None` for a hidden column.
    widths: Vec<Option<usize>>,
    to: To<'t>,
    outcome: io::Result<()>,
}

enum To<'t> {
    /// The widths grow to the cells'.
    Measure,
    /// Counts different names.
    Compare(Seen),
    Write(&'t mut dyn Write),
    /// Lines with tabs, in full.
    Separate(&'t mut dyn Write),
}

/// Hashes of different names in a column, and of their shortened forms.
struct Seen {
    column: usize,
    width: usize,
    full: HashSet<u64>,
    shortened: HashSet<u64>,
}

impl Seen {
    fn add(&mut self, name: &str) {
        let shortened = shorten::to_width(name, self.width, Cut::Middle);
        self.shortened.insert(self.full.hasher().hash_one(&*shortened));
        self.full.insert(self.full.hasher().hash_one(name));
    }
}

impl Rows<'_> {
    /// A row has a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        match &mut self.to {
            To::Measure => {
                for (cell, width) in cells.into_iter().zip(&mut self.widths) {
                    *width = (*width).max(Some(cell.as_ref().width()));
                }
            }
            To::Compare(seen) => {
                if let Some(name) = cells.into_iter().nth(seen.column) {
                    seen.add(name.as_ref());
                }
            }
            To::Write(_) => {
                let line = self.cells(cells);
                self.line(line.trim_end());
            }
            To::Separate(_) => {
                let mut line = String::new();
                for (i, cell) in cells.into_iter().enumerate() {
                    line.push_str(if i > 0 { "\t" } else { "" });
                    line.push_str(cell.as_ref());
                }
                self.line(&line);
            }
        }
    }

    /// Returns the cells of a row, each as wide as its column.
    fn cells(&self, cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
        let mut line = String::new();
        for ((cell, width), column) in cells.into_iter().zip(&self.widths).zip(self.columns) {
            let (Some(width), cell) = (*width, cell.as_ref()) else { continue };
            let shortened = shorten::to_width(cell, width, column.cut);
            let spaces = width.saturating_sub(shortened.width());
            let (before, after) = if column.is_right { (spaces, 0) } else { (0, spaces) };
            let gap = if line.is_empty() { 0 } else { GAP };
            line.extend(std::iter::repeat_n(' ', gap + before));
            line.push_str(&shortened);
            line.extend(std::iter::repeat_n(' ', after));
        }
        line
    }

    fn line(&mut self, line: &str) {
        if let (To::Write(out) | To::Separate(out), Ok(())) = (&mut self.to, &self.outcome) {
            self.outcome = writeln!(out, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(width: Option<usize>, columns: &[Column<'_>], rows: &[&[&str]]) -> String {
        let mut text = Vec::new();
        let all = |table: &mut Rows<'_>| rows.iter().for_each(|row| table.row(*row));
        write_within(width, columns, &mut text, all).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn shown(columns: &[Column<'_>], rows: &[&[&str]]) -> String {
        within(Some(1000), columns, rows)
    }

    #[test]
    fn words_are_left_and_numbers_right() {
        let columns = [Column::name("name"), Column::number("size"), Column::name("file")];
        let rows = [&["weight", "1 B", "a"][..], &["b", "1,000 B", "long name"]];
        let expected = "\
name       size  file
──────────────────────────
weight      1 B  a
b       1,000 B  long name
";
        assert_eq!(shown(&columns, &rows), expected);
        assert_eq!(within(Some(26), &columns, &rows), expected);
    }

    #[test]
    fn programs_get_tabs_and_every_cell_in_full() {
        let columns = [Column::name("name").rank(0), Column::number("size"), Column::text("value")];
        let long = "v".repeat(5000);
        let rows = [&["a b", "1 B", ""][..], &["", "1,000 B", &long]];
        let expected = format!("name\tsize\tvalue\na b\t1 B\t\n\t1,000 B\t{long}\n");
        assert_eq!(within(None, &columns, &rows), expected);
    }

    #[test]
    fn wide_characters_take_two_columns_and_empty_cells_none() {
        let columns = [Column::name("a"), Column::number("b")];
        assert_eq!(shown(&columns, &[]), "a  b\n────\n");
        assert_eq!(shown(&columns, &[&["层0", "1"], &["", ""]]), "a    b\n──────\n层0  1\n\n");
    }

    #[test]
    fn a_full_disk_is_reported() {
        let mut full = &mut [0_u8; 3][..];
        assert!(write(&[Column::name("a")], &mut full, |table| table.row(["b"])).is_err());
    }

    #[test]
    fn columns_are_dropped_before_different_names_look_the_same() {
        let columns = [
            Column::name("name").rank(0).distinct(),
            Column::number("a").rank(2),
            Column::number("b").rank(1),
        ];
        let names = ["model.layers.0.attention.weight", "model.layers.1.attention.weight"];
        let rows = names.map(|name| [name, "1,000,000", "2,000,000"]);
        let rows: Vec<_> = rows.iter().map(|row| &row[..]).collect();
        // Without a column, the second name would be `model.la….attention.weight`, too.
        let expected = "\
name                                     b  …
─────────────────────────────────────────────
model.layers.0.attention.weight  2,000,000
model.layers.1.attention.weight  2,000,000
";
        assert_eq!(within(Some(48), &columns, &rows), expected);
        // Two equal names are one name, and names that are never distinct hide no column.
        let twice = [rows[0], rows[0]];
        assert!(within(Some(48), &columns, &twice).contains("1,000,000"));
        let long = ["a", "b"].map(|c| format!("{}{c}{}", "x".repeat(50), "x".repeat(50)));
        let long = long.each_ref().map(|name| [&**name, "1,000,000", "2,000,000"]);
        let shown = within(Some(48), &columns, &[&long[0], &long[1]]);
        assert!(shown.contains("1,000,000"), "{shown}");
    }

    #[test]
    fn a_narrow_terminal_shortens_names_and_then_leaves_columns_out_by_rank() {
        let columns = [
            Column::name("name").rank(0),
            Column::word("dtype").rank(2),
            Column::number("tensors").rank(3),
            Column::number("size").rank(1),
        ];
        let rows = [
            &["encoder.layer.0.attention.self.query.weight", "F32", "1", "589.8 kB"][..],
            &["└─ weight", "BF16", "1,000", "1.5 kB"],
        ];
        let expected = "\
name                         dtype  tensors      size
─────────────────────────────────────────────────────
encoder.l…self.query.weight  F32          1  589.8 kB
└─ weight                    BF16     1,000    1.5 kB
";
        assert_eq!(within(Some(53), &columns, &rows), expected);
        let expected = "\
name                      size  …
─────────────────────────────────
encode….query.weight  589.8 kB
└─ weight               1.5 kB
";
        assert_eq!(within(Some(33), &columns, &rows), expected);
    }
}
