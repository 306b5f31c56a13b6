//! [`Table`]: columns under a rule. Nothing else is drawn, so that other programs can split the
//! columns.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, LineStyle, TableStyle};

/// The alignment of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Rows under column titles. Cells must be printable: see [`text`](crate::text).
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
        let mut table = comfy_table::Table::new();
        table.load_style(STYLE).set_header(columns.iter().map(|(title, _)| Cell::new(title)));
        for (i, (column, (_, align))) in table.column_iter_mut().zip(columns).enumerate() {
            let gap = if i + 1 < columns.len() { 2 } else { 0 };
            column.set_padding((0, gap)).set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().map(Cell::new_owned));
    }

    /// Writes the table, without spaces at the ends of lines.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.0.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_and_numbers_right() {
        let mut table =
            Table::new(&[("name", Align::Left), ("size", Align::Right), ("file", Align::Left)]);
        table.row(["weight", "1 B", "a"].map(String::from));
        table.row(["b", "1,000 B", "long name"].map(String::from));
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        let expected = "\
name       size  file
──────────────────────────
weight      1 B  a
b       1,000 B  long name
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
