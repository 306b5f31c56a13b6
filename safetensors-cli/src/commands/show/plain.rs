//! Values for other programs: JSON and CSV.

use std::fmt;
use std::io::{self, Write};

use super::advance;
use super::read::Value;

/// Nested arrays, with a line for each row of the last dimension.
pub(super) struct Json<'a, W> {
    shape: Vec<usize>,
    out: &'a mut W,
    at: Vec<usize>,
}

impl<'a, W: Write> Json<'a, W> {
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
        let closed = advance(&mut self.at, self.shape.iter().copied());
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
            Value::Single(number) if !number.is_finite() => {
                write!(self.out, "{}", special(number.into()))
            }
            Value::Double(number) if !number.is_finite() => {
                write!(self.out, "{}", special(number))
            }
            Value::Complex(real, imaginary) => {
                write!(self.out, "[")?;
                self.number(Value::Single(real))?;
                write!(self.out, ", ")?;
                self.number(Value::Single(imaginary))?;
                write!(self.out, "]")
            }
            value => write!(self.out, "{value}"),
        }
    }
}

/// Displays the fewest digits that distinguish a number.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Single(number) => write!(f, "{number:?}"),
            Self::Double(number) => write!(f, "{number:?}"),
            Self::Complex(real, imaginary) => {
                let has_sign = imaginary.is_sign_negative() && !imaginary.is_nan();
                write!(f, "{real:?}{}{imaginary:?}j", if has_sign { "" } else { "+" })
            }
        }
    }
}

// JSON has no such numbers.
fn special(number: f64) -> &'static str {
    match number {
        f64::INFINITY => "\"Infinity\"",
        f64::NEG_INFINITY => "\"-Infinity\"",
        _ => "\"NaN\"",
    }
}

/// A line for each row. With one dimension each value is a row.
pub(super) struct Csv<'a, W> {
    columns: usize,
    out: &'a mut W,
    at: usize,
}

impl<'a, W: Write> Csv<'a, W> {
    pub(super) fn new(shape: &[usize], out: &'a mut W) -> Self {
        let columns = if shape.len() < 2 { 1 } else { shape[shape.len() - 1] };
        Self { columns, out, at: 0 }
    }

    pub(super) fn value(&mut self, value: Value) -> io::Result<()> {
        write!(self.out, "{value}")?;
        self.at += 1;
        if self.at < self.columns {
            return write!(self.out, ",");
        }
        self.at = 0;
        writeln!(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(shape: &[usize], values: &[Value]) -> String {
        let mut text = Vec::new();
        let mut json = Json::new(shape.to_vec(), &mut text);
        values.iter().for_each(|&value| json.value(value).unwrap());
        String::from_utf8(text).unwrap()
    }

    fn csv(shape: &[usize], values: &[Value]) -> String {
        let mut text = Vec::new();
        let mut csv = Csv::new(shape, &mut text);
        values.iter().for_each(|&value| csv.value(value).unwrap());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn arrays_are_nested_as_the_dimensions() {
        let values: Vec<_> = (0..12).map(Value::Unsigned).collect();
        let cube = "[\n    [\n      [0, 1],\n      [2, 3],\n      [4, 5]\n    ],\n    [\n      [6, 7],\n      \
                    [8, 9],\n      [10, 11]\n    ]\n  ]";
        assert_eq!(json(&[2, 3, 2], &values), cube);
        assert_eq!(json(&[3], &values[..3]), "[0, 1, 2]");
        assert_eq!(json(&[], &values[5..6]), "5");
        assert_eq!(json(&[1, 1, 1], &values[..1]), "[\n    [\n      [0]\n    ]\n  ]");
        assert_eq!(csv(&[2, 3, 2], &values), "0,1\n2,3\n4,5\n6,7\n8,9\n10,11\n");
        assert_eq!(csv(&[3], &values[..3]), "0\n1\n2\n");
        assert_eq!(csv(&[], &values[..1]), "0\n");
    }

    #[test]
    fn every_value_reads_back() {
        let numbers = [0.1_f32, -0.0, 1e30, 1e-45, f32::MAX];
        let text = json(&[5], &numbers.map(Value::Single));
        let back: Vec<f32> = serde_json::from_str(&text).unwrap();
        assert!(back.iter().zip(numbers).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
        let numbers = [1.0 / 3.0, 5e-324, f64::MAX];
        let text = json(&[3], &numbers.map(Value::Double));
        assert_eq!(serde_json::from_str::<Vec<f64>>(&text).unwrap(), numbers);
        let integers = [Value::Signed(i64::MIN), Value::Unsigned(u64::MAX)];
        assert_eq!(json(&[2], &integers), "[-9223372036854775808, 18446744073709551615]");
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(Value::Single);
        assert_eq!(json(&[3], &special), r#"["NaN", "Infinity", "-Infinity"]"#);
        assert_eq!(csv(&[1, 3], &special), "NaN,inf,-inf\n");
        let complex = [Value::Complex(1.0, -2.5), Value::Complex(f32::NAN, f32::INFINITY)];
        assert_eq!(json(&[2], &complex), r#"[[1.0, -2.5], ["NaN", "Infinity"]]"#);
        assert_eq!(csv(&[2], &complex), "1.0-2.5j\nNaN+infj\n");
        let truth = [Value::Bool(true), Value::Bool(false)];
        assert_eq!(
            (json(&[2], &truth), csv(&[1, 2], &truth)),
            ("[true, false]".into(), "true,false\n".into())
        );
    }
}
