//! Values for other programs: JSON and CSV.

use std::io::{self, Write};

use super::read::Value;

/// Takes values in C order, and writes them as nested JSON arrays. Those of the last dimension share
/// a line.
pub(super) struct Json<'a, W> {
    shape: Vec<usize>,
    out: &'a mut W,
    at: Vec<usize>,
}

impl<'a, W: Write> Json<'a, W> {
    /// Values of this shape.
    pub(super) fn new(shape: Vec<usize>, out: &'a mut W) -> Self {
        let at = vec![0; shape.len()];
        Self { shape, out, at }
    }

    pub(super) fn value(&mut self, value: Value) -> io::Result<()> {
        let opened = self.at.iter().rev().take_while(|&&position| position == 0).count();
        if opened > 0 && opened < self.shape.len() {
            writeln!(self.out, ",")?;
        } else if opened == 0 && !self.shape.is_empty() {
            write!(self.out, ", ")?;
        }
        for depth in self.shape.len() - opened..self.shape.len() {
            let indent = "  ".repeat(depth + 1);
            let is_row = depth + 1 == self.shape.len();
            let start = if depth == 0 { "" } else { &*indent };
            write!(self.out, "{start}[{}", if is_row { "" } else { "\n" })?;
        }
        self.number(value)?;
        let mut closed = 0;
        for (position, &len) in self.at.iter_mut().zip(&self.shape).rev() {
            if *position + 1 < len {
                *position += 1;
                break;
            }
            *position = 0;
            closed += 1;
        }
        for depth in (self.shape.len() - closed..self.shape.len()).rev() {
            if depth + 1 == self.shape.len() {
                write!(self.out, "]")?;
            } else {
                write!(self.out, "\n{}]", "  ".repeat(depth + 1))?;
            }
        }
        Ok(())
    }

    fn number(&mut self, value: Value) -> io::Result<()> {
        match value {
            Value::Bool(value) => write!(self.out, "{value}"),
            Value::Signed(number) => write!(self.out, "{number}"),
            Value::Unsigned(number) => write!(self.out, "{number}"),
            Value::Single(number) if number.is_finite() => write!(self.out, "{number:?}"),
            Value::Double(number) if number.is_finite() => write!(self.out, "{number:?}"),
            Value::Single(number) => write!(self.out, "{}", special(number.into())),
            Value::Double(number) => write!(self.out, "{}", special(number)),
            Value::Complex(real, imaginary) => {
                write!(self.out, "[")?;
                self.number(Value::Single(real))?;
                write!(self.out, ", ")?;
                self.number(Value::Single(imaginary))?;
                write!(self.out, "]")
            }
        }
    }
}

/// NaN and infinity, which JSON does not have as numbers.
fn special(number: f64) -> &'static str {
    match number {
        f64::INFINITY => "\"Infinity\"",
        f64::NEG_INFINITY => "\"-Infinity\"",
        _ => "\"NaN\"",
    }
}

/// Takes values in C order, and writes a line for each row. Of one dimension each value is a row.
pub(super) struct Csv<'a, W> {
    columns: usize,
    out: &'a mut W,
    at: usize,
}

impl<'a, W: Write> Csv<'a, W> {
    /// Values of this shape.
    pub(super) fn new(shape: &[usize], out: &'a mut W) -> Self {
        let columns = if shape.len() < 2 { 1 } else { shape[shape.len() - 1] };
        Self { columns, out, at: 0 }
    }

    pub(super) fn value(&mut self, value: Value) -> io::Result<()> {
        match value {
            Value::Bool(value) => write!(self.out, "{value}"),
            Value::Signed(number) => write!(self.out, "{number}"),
            Value::Unsigned(number) => write!(self.out, "{number}"),
            Value::Single(number) => write!(self.out, "{number:?}"),
            Value::Double(number) => write!(self.out, "{number:?}"),
            Value::Complex(real, imaginary) => {
                let has_sign = imaginary.is_sign_negative() && !imaginary.is_nan();
                write!(self.out, "{real:?}{}{imaginary:?}j", if has_sign { "" } else { "+" })
            }
        }?;
        self.at += 1;
        if self.at < self.columns {
            return write!(self.out, ",");
        }
        self.at = 0;
        writeln!(self.out)
    }
}
