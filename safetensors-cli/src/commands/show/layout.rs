//! [`Layout`]: the nested brackets and the lines of an array, as NumPy prints it.

use std::io::{self, Write};

use super::number::Format;
use super::read::Value;

/// The positions of a dimension that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownDim {
    /// Their number; at least 1.
    pub(super) count: usize,
    /// The position before which others are left out, if there are any.
    pub(super) gap: Option<usize>,
}

/// Takes values in C order, and writes them as lines.
pub(super) struct Layout<'a, W> {
    dims: Vec<ShownDim>,
    format: &'a Format,
    /// The most characters of a line.
    width: usize,
    out: &'a mut W,
    /// The position of the next value in each dimension.
    at: Vec<usize>,
    line: String,
}

impl<'a, W: Write> Layout<'a, W> {
    pub(super) fn new(
        dims: Vec<ShownDim>,
        format: &'a Format,
        width: usize,
        out: &'a mut W,
    ) -> Self {
        let at = vec![0; dims.len()];
        Self { dims, format, width, out, at, line: String::new() }
    }

    /// Writes the next value.
    pub(super) fn value(&mut self, value: Value) -> io::Result<()> {
        let word = self.format.text(value);
        let ndim = self.dims.len();
        let Some((last, &position)) = self.dims.last().zip(self.at.last()) else {
            return writeln!(self.out, "{}", word.trim());
        };
        let last = *last;
        if position == 0 {
            self.begin_row()?;
        }
        if last.gap == Some(position) {
            self.word("...")?;
            self.line.push(' ');
        }
        self.word(&word)?;
        if position + 1 < last.count {
            self.line.push(' ');
            self.at[ndim - 1] += 1;
            return Ok(());
        }
        self.end_row()
    }

    /// Begins the line of a row, after the dots for rows that are left out.
    fn begin_row(&mut self) -> io::Result<()> {
        let ndim = self.dims.len();
        let opened = self.at.iter().rev().take_while(|&&position| position == 0).count();
        if let Some(outer) = ndim.checked_sub(opened + 1)
            && self.dims[outer].gap == Some(self.at[outer])
        {
            // Arrays of more dimensions are further apart.
            let lines = "\n".repeat(opened);
            write!(self.out, "{}...{lines}", " ".repeat(outer + 1))?;
        }
        self.line = " ".repeat(ndim - opened) + &"[".repeat(opened);
        Ok(())
    }

    /// Adds a word to the line, or to the next one if this is full.
    fn word(&mut self, word: &str) -> io::Result<()> {
        // A closing bracket of each dimension has to fit behind it.
        let ndim = self.dims.len();
        let is_full = self.line.len() + word.len() > self.width.saturating_sub(ndim);
        if is_full && self.line.len() > ndim {
            writeln!(self.out, "{}", self.line.trim_end())?;
            self.line = " ".repeat(ndim);
        }
        self.line.push_str(word);
        Ok(())
    }

    /// Ends a row, and moves to the next.
    fn end_row(&mut self) -> io::Result<()> {
        let mut closed = 0;
        for (position, dim) in self.at.iter_mut().zip(&self.dims).rev() {
            if *position + 1 < dim.count {
                *position += 1;
                break;
            }
            *position = 0;
            closed += 1;
        }
        let lines = if closed == self.dims.len() { 1 } else { closed };
        write!(self.out, "{}{}{}", self.line, "]".repeat(closed), "\n".repeat(lines))
    }
}
