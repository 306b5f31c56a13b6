//! Tables: columns under a rule. Nothing else is drawn, so that other programs can split the
//! columns.
//!
//! | file | content |
//! |---|---|
//! | `fit` | the widths of the columns on a terminal, and which are left out |
//! | `shorten` | a cell with its middle or its end left out |

mod fit;
mod shorten;

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use crate::screen::Screen;

/// The spaces between two columns.
const GAP: usize = 2;

/// The alignment of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A column: its title, and what becomes of it on a narrow terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'t> {
    title: &'t str,
    align: Align,
    cut: Cut,
    /// The column with the highest rank is left out first, one of rank 0 never. `None` ranks by
    /// position: the last is left out first.
    rank: Option<u8>,
}

/// What a column leaves out of cells that are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Nothing.
    Nothing,
    /// Their middle.
    Middle,
    /// Their end.
    End,
}

impl<'t> Column<'t> {
    /// Names or paths, which are shortened in the middle.
    pub(crate) const fn name(title: &'t str) -> Self {
        Self { title, align: Align::Left, cut: Cut::Middle, rank: None }
    }

    /// Texts, which are shortened at the end.
    pub(crate) const fn text(title: &'t str) -> Self {
        Self { title, align: Align::Left, cut: Cut::End, rank: None }
    }

    /// Short words, which are never shortened.
    pub(crate) const fn word(title: &'t str) -> Self {
        Self { title, align: Align::Left, cut: Cut::Nothing, rank: None }
    }

    /// Numbers, which are never shortened.
    pub(crate) const fn number(title: &'t str) -> Self {
        Self { title, align: Align::Right, cut: Cut::Nothing, rank: None }
    }

    /// Sets the rank: where the terminal is too narrow, the column with the highest rank is left
    /// out first. A column of rank 0 always stays.
    pub(crate) const fn rank(self, rank: u8) -> Self {
        Self { rank: Some(rank), ..self }
    }
}

/// A column of names or of numbers, with a rank by its position.
impl<'t> From<(&'t str, Align)> for Column<'t> {
    fn from((title, align): (&'t str, Align)) -> Self {
        match align {
            Align::Left => Self::name(title),
            Align::Right => Self::number(title),
        }
    }
}

/// Writes rows under column titles, without spaces at the ends of lines. Cells must be printable,
/// see [`text`](crate::text).
///
/// On a terminal no row is longer than a line: long names are shortened, and columns left out. A
/// `…` after the titles says that some are. A file or a pipe gets everything.
///
/// `rows` is called twice and must give the same rows: the first call measures the columns, the
/// second writes. No row is kept, because a checkpoint may have a million tensors.
pub(crate) fn write<'t, C: Copy + Into<Column<'t>>>(
    columns: &[C],
    out: &mut impl Write,
    rows: impl Fn(&mut Rows<'_>),
) -> io::Result<()> {
    write_within(Screen::of_stdout().map(|screen| screen.columns), columns, out, rows)
}

/// [`write()`] for lines of this width; `None` is any.
fn write_within<'t, C: Copy + Into<Column<'t>>>(
    width: Option<usize>,
    columns: &[C],
    out: &mut impl Write,
    rows: impl Fn(&mut Rows<'_>),
) -> io::Result<()> {
    let columns: Vec<_> = columns.iter().map(|&column| column.into()).collect();
    let mut all = Rows { columns: &columns, widths: Vec::new(), out: None, outcome: Ok(()) };
    all.widths = columns.iter().map(|column| Some(column.title.width())).collect();
    rows(&mut all);
    if let Some(width) = width {
        let natural: Vec<_> = all.widths.iter().map(|width| width.unwrap_or(0)).collect();
        all.widths = fit::fit(&columns, &natural, width);
    }
    let is_less = all.widths.contains(&None);
    all.out = Some(out);
    let titles = all.cells(columns.iter().map(|column| column.title));
    all.line(&if is_less { format!("{titles}  …") } else { titles.trim_end().to_owned() });
    let kept: Vec<_> = all.widths.iter().flatten().collect();
    let total = kept.iter().copied().sum::<usize>() + GAP * kept.len().saturating_sub(1);
    all.line(&"─".repeat(total + if is_less { fit::MARK } else { 0 }));
    rows(&mut all);
    all.outcome
}

/// Takes the rows of a table.
pub(crate) struct Rows<'t> {
    columns: &'t [Column<'t>],
    /// The width of each column; `None` for one that is left out.
    widths: Vec<Option<usize>>,
    /// The writer; `None` while the columns are measured.
    out: Option<&'t mut dyn Write>,
    outcome: io::Result<()>,
}

impl Rows<'_> {
    /// Takes a row, which has a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        if self.out.is_some() {
            let line = self.cells(cells);
            self.line(line.trim_end());
            return;
        }
        for (cell, width) in cells.into_iter().zip(&mut self.widths) {
            *width = (*width).max(Some(cell.as_ref().width()));
        }
    }

    /// The cells of a row, each as wide as its column.
    fn cells(&self, cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
        let mut line = String::new();
        for ((cell, width), column) in cells.into_iter().zip(&self.widths).zip(self.columns) {
            let (Some(width), cell) = (*width, cell.as_ref()) else { continue };
            let shortened = shorten::to_width(cell, width, column.cut);
            let spaces = width.saturating_sub(shortened.width());
            let (before, after) = match column.align {
                Align::Left => (0, spaces),
                Align::Right => (spaces, 0),
            };
            let gap = if line.is_empty() { 0 } else { GAP };
            line.extend(std::iter::repeat_n(' ', gap + before));
            line.push_str(&shortened);
            line.extend(std::iter::repeat_n(' ', after));
        }
        line
    }

    fn line(&mut self, line: &str) {
        if let (Some(out), Ok(())) = (&mut self.out, &self.outcome) {
            self.outcome = writeln!(out, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within<'t, C: Copy + Into<Column<'t>>>(
        width: Option<usize>,
        columns: &[C],
        rows: &[&[&str]],
    ) -> String {
        let mut text = Vec::new();
        let all = |table: &mut Rows<'_>| rows.iter().for_each(|row| table.row(*row));
        write_within(width, columns, &mut text, all).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn shown(columns: &[(&'static str, Align)], rows: &[&[&str]]) -> String {
        within(None, columns, rows)
    }

    #[test]
    fn words_are_left_and_numbers_right() {
        let columns = [("name", Align::Left), ("size", Align::Right), ("file", Align::Left)];
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
    fn wide_characters_take_two_columns_and_empty_cells_none() {
        let columns = [("a", Align::Left), ("b", Align::Right)];
        assert_eq!(shown(&columns, &[]), "a  b\n────\n");
        assert_eq!(shown(&columns, &[&["层0", "1"], &["", ""]]), "a    b\n──────\n层0  1\n\n");
    }

    #[test]
    fn a_full_disk_is_told() {
        let mut full = &mut [0_u8; 6][..];
        assert!(write(&[("a", Align::Left)], &mut full, |table| table.row(["b"])).is_err());
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
