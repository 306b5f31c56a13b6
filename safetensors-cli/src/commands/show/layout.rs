//! [`Layout`]: the brackets and lines of an array, as NumPy prints it.

use std::io::{self, Write};

use super::advance;
use super::number::Format;
use super::read::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownDim {
    /// The number of shown positions, at least 1.
    pub(super) count: usize,
    /// The position before which others are skipped.
    pub(super) gap: Option<usize>,
}

/// Writes values in C order.
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

    /// Begins the line of a row, after the dots for skipped rows.
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

    /// Adds a word, to a new line if this one is full.
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

    fn end_row(&mut self) -> io::Result<()> {
        let closed = advance(&mut self.at, self.dims.iter().map(|dim| dim.count));
        let lines = if closed == self.dims.len() { 1 } else { closed };
        write!(self.out, "{}{}{}", self.line, "]".repeat(closed), "\n".repeat(lines))
    }
}

#[cfg(test)]
mod tests {
    use super::super::shown_dims;
    use super::*;

    fn shown(shape: &[usize], edge: usize, values: impl IntoIterator<Item = Value>) -> String {
        let (values, mut format) = (values.into_iter().collect::<Vec<_>>(), Format::default());
        values.iter().for_each(|&value| format.measure(value));
        let mut text = Vec::new();
        let mut layout = Layout::new(shown_dims(shape, edge), &format, 80, &mut text);
        values.into_iter().for_each(|value| layout.value(value).unwrap());
        String::from_utf8(text).unwrap()
    }

    /// Counts up, and skips hidden positions.
    fn counted(shape: &[usize], edge: usize) -> String {
        let is_shown = |&i: &usize| {
            let mut rest = i;
            shape.iter().rev().all(|&len| {
                let position = rest % len;
                rest /= len;
                len <= 2 * edge || position < edge || position >= len - edge
            })
        };
        let all = (0..shape.iter().product()).filter(is_shown);
        shown(shape, edge, all.map(|i| Value::Unsigned(i as u64)))
    }

    /// The expected texts come from `numpy.arange` with `numpy.set_printoptions(linewidth=80)`.
    #[test]
    fn brackets_and_lines_equal_those_of_numpy() {
        let cube = "\
[[[ 0  1  2  3]
  [ 4  5  6  7]
  [ 8  9 10 11]]

 [[12 13 14 15]
  [16 17 18 19]
  [20 21 22 23]]]
";
        assert_eq!(counted(&[2, 3, 4], 3), cube);
        let matrix = "\
[[   0    1    2 ...   47   48   49]
 [  50   51   52 ...   97   98   99]
 [ 100  101  102 ...  147  148  149]
 ...
 [1850 1851 1852 ... 1897 1898 1899]
 [1900 1901 1902 ... 1947 1948 1949]
 [1950 1951 1952 ... 1997 1998 1999]]
";
        assert_eq!(counted(&[40, 50], 3), matrix);
        assert_eq!(counted(&[1200], 3), "[   0    1    2 ... 1197 1198 1199]\n");
        assert_eq!(counted(&[], 3), "0\n");
        // With `edgeitems=1`.
        let cube = "\
[[[   0 ...   29]
  ...
  [ 270 ...  299]]

 ...

 [[2100 ... 2129]
  ...
  [2370 ... 2399]]]
";
        assert_eq!(counted(&[8, 10, 30], 1), cube);
        let zeros = shown(&[1, 2, 1, 2], 3, [Value::Double(0.0); 4]);
        assert_eq!(zeros, "[[[[0. 0.]]\n\n  [[0. 0.]]]]\n");
    }

    #[test]
    fn long_rows_go_on_in_the_next_line() {
        let thousands = (0..30).map(|i| Value::Signed(1000 * i));
        let expected = "\
[    0  1000  2000  3000  4000  5000  6000  7000  8000  9000 10000 11000 12000
 13000 14000 15000 16000 17000 18000 19000 20000 21000 22000 23000 24000 25000
 26000 27000 28000 29000]
";
        assert_eq!(shown(&[30], 100, thousands.clone()), expected);
        let row = shown(&[1; 200], 3, [Value::Signed(1)]);
        assert_eq!(row, format!("{}1{}\n", "[".repeat(200), "]".repeat(200)));
    }
}
