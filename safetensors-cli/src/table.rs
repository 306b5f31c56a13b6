//! Tables: columns under a rule. Nothing else is drawn, so that other programs can split the
//! columns.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

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

/// Writes rows under column titles, without spaces at the ends of lines. Cells must be printable, see
/// [`text`](crate::text).
///
/// `rows` is called twice and must give the same rows: the first call measures the columns, the
/// second writes. No row is kept, because a checkpoint may have a million tensors.
pub(crate) fn write(
    columns: &[(&str, Align)],
    out: &mut impl Write,
    rows: impl Fn(&mut Rows<'_>),
) -> io::Result<()> {
    let titles = || columns.iter().map(|(title, _)| title);
    let mut all = Rows { columns, widths: vec![0; columns.len()], out: None, outcome: Ok(()) };
    all.row(titles());
    rows(&mut all);
    all.out = Some(out);
    all.row(titles());
    let total = all.widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1);
    all.line(&"─".repeat(total));
    rows(&mut all);
    all.outcome
}

/// Takes the rows of a table.
pub(crate) struct Rows<'t> {
    columns: &'t [(&'t str, Align)],
    /// The width of each column.
    widths: Vec<usize>,
    /// The writer; `None` while the columns are measured.
    out: Option<&'t mut dyn Write>,
    outcome: io::Result<()>,
}

impl Rows<'_> {
    /// Takes a row, which has a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        let is_measured = self.out.is_none();
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.into_iter().zip(&mut self.widths).zip(self.columns)
        {
            let (cell, shown) = (cell.as_ref(), cell.as_ref().width());
            if is_measured {
                *width = shown.max(*width);
                continue;
            }
            let spaces = *width - shown;
            let (before, after) = match align {
                Align::Left => (0, spaces),
                Align::Right => (spaces, 0),
            };
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', after + GAP));
        }
        self.line(line.trim_end());
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

    fn shown(columns: &[(&str, Align)], rows: &[&[&str]]) -> String {
        let mut text = Vec::new();
        write(columns, &mut text, |table| rows.iter().for_each(|row| table.row(*row))).unwrap();
        String::from_utf8(text).unwrap()
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
}
