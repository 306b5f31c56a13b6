//! [`Format`]: values as text of equal width, as NumPy prints arrays.

use std::fmt::{Display, LowerExp};

use super::read::Value;

/// The most digits after the point.
const PRECISION: usize = 8;

/// The extent of values, which determines their text.
#[derive(Debug, Default)]
pub(super) struct Format {
    /// The width of integers and booleans.
    width: usize,
    /// The extent of floats, and of the real parts of complex numbers.
    float: Float,
    /// The extent of imaginary parts.
    imaginary: Float,
}

/// The extent of floats in both notations.
#[derive(Debug, Default)]
struct Float {
    /// The smallest magnitude but 0, and the largest.
    extremes: Option<(f64, f64)>,
    is_single: bool,
    /// The digits before the point, and the sign.
    before: usize,
    /// The digits after the point.
    after: usize,
    /// The extent in scientific notation, and the digits of the exponent.
    mantissa_before: usize,
    mantissa_after: usize,
    exponent: usize,
    special: usize,
}

impl Format {
    pub(super) fn measure(&mut self, value: Value) {
        match value {
            Value::Single(number) => self.float.measure(&Number::new(number)),
            Value::Double(number) => self.float.measure(&Number::new(number)),
            Value::Complex(real, imaginary) => {
                self.float.measure(&Number::new(real));
                self.imaginary.measure(&Number::new(imaginary).with_plus());
            }
            // NumPy leaves room for `False` wherever there is a dimension.
            Value::Bool(_) => self.width = 5,
            Value::Signed(number) => self.width = self.width.max(number.to_string().len()),
            Value::Unsigned(number) => self.width = self.width.max(number.to_string().len()),
        }
    }

    /// `value` was measured.
    pub(super) fn text(&self, value: Value) -> String {
        let width = self.width;
        match value {
            Value::Single(number) => self.float.text(&Number::new(number)),
            Value::Double(number) => self.float.text(&Number::new(number)),
            Value::Complex(real, imaginary) => {
                let real = self.float.text(&Number::new(real));
                let imaginary = self.imaginary.text(&Number::new(imaginary).with_plus());
                let digits = imaginary.trim_end();
                format!("{real}{digits}j{}", &imaginary[digits.len()..])
            }
            Value::Bool(true) => format!("{:>width$}", "True"),
            Value::Bool(false) => format!("{:>width$}", "False"),
            Value::Signed(number) => format!("{number:>width$}"),
            Value::Unsigned(number) => format!("{number:>width$}"),
        }
    }
}

/// A float in both notations, with no more digits than distinguish it from its neighbours.
struct Number {
    /// `None` for NaN and infinity.
    finite: Option<Digits>,
    magnitude: f64,
    is_single: bool,
    special: String,
}

/// `-1.5e-5` in parts: `-1`, `5`, `-` and `5`; and as a decimal `-0` and `000015`.
struct Digits {
    before: String,
    after: String,
    mantissa_before: String,
    mantissa_after: String,
    sign: char,
    exponent: String,
}

impl Number {
    fn new<F: Copy + Display + LowerExp + Into<f64>>(number: F) -> Self {
        let value: f64 = number.into();
        let special = match value {
            value if value.is_nan() => "nan",
            value if value < 0.0 => "-inf",
            _ => "inf",
        };
        let finite = value.is_finite().then(|| Digits::new(number));
        let is_single = size_of::<F>() == size_of::<f32>();
        Self { finite, magnitude: value.abs(), is_single, special: special.to_owned() }
    }

    /// Adds a plus unless it is negative, as for an imaginary part.
    fn with_plus(mut self) -> Self {
        let plus = |text: &mut String| {
            if !text.starts_with('-') {
                text.insert(0, '+');
            }
        };
        plus(&mut self.special);
        if let Some(digits) = &mut self.finite {
            plus(&mut digits.before);
            plus(&mut digits.mantissa_before);
        }
        self
    }
}

impl Digits {
    fn new<F: Copy + Display + LowerExp>(number: F) -> Self {
        let (mut before, mut after) = split(&number.to_string(), '.');
        if after.len() > PRECISION {
            (before, after) = split(format!("{number:.PRECISION$}").trim_end_matches('0'), '.');
        }
        let (mut mantissa, mut exponent) = split(&format!("{number:e}"), 'e');
        if split(&mantissa, '.').1.len() > PRECISION {
            (mantissa, exponent) = split(&format!("{number:.PRECISION$e}"), 'e');
            mantissa.truncate(mantissa.trim_end_matches('0').len());
        }
        let (mantissa_before, mantissa_after) = split(&mantissa, '.');
        let sign = if exponent.starts_with('-') { '-' } else { '+' };
        let exponent = format!("{:0>2}", exponent.trim_start_matches('-'));
        Self { before, after, mantissa_before, mantissa_after, sign, exponent }
    }
}

/// Splits a text at a character that it may lack.
fn split(text: &str, at: char) -> (String, String) {
    let (before, after) = text.split_once(at).unwrap_or((text, ""));
    (before.to_owned(), after.to_owned())
}

impl Float {
    fn measure(&mut self, number: &Number) {
        let Some(digits) = &number.finite else {
            self.special = self.special.max(number.special.len());
            return;
        };
        self.is_single |= number.is_single;
        if number.magnitude > 0.0 {
            let (least, most) = self.extremes.unwrap_or((number.magnitude, number.magnitude));
            self.extremes = Some((least.min(number.magnitude), most.max(number.magnitude)));
        }
        let grow = |room: &mut usize, text: &str| *room = text.len().max(*room);
        grow(&mut self.before, &digits.before);
        grow(&mut self.after, &digits.after);
        grow(&mut self.mantissa_before, &digits.mantissa_before);
        grow(&mut self.mantissa_after, &digits.mantissa_after);
        grow(&mut self.exponent, &digits.exponent);
    }

    /// Whether numbers would otherwise be too long, or too different to compare.
    fn is_scientific(&self) -> bool {
        // As an `f32`, 0.0001 is a little smaller.
        let small = if self.is_single { f64::from(1e-4_f32) } else { 1e-4 };
        self.extremes
            .is_some_and(|(least, most)| most >= 1e8 || least < small || most / least > 1000.0)
    }

    fn text(&self, number: &Number) -> String {
        let is_scientific = self.is_scientific();
        let (before, after) = if is_scientific {
            (self.mantissa_before, self.mantissa_after + 2 + self.exponent)
        } else {
            (self.before, self.after)
        };
        let width = (before + 1 + after).max(self.special);
        match &number.finite {
            None => format!("{:>width$}", number.special),
            Some(digits) if is_scientific => {
                // Zeros fill the gaps, so that the exponents are below each other.
                let Digits {
                    mantissa_before: before, mantissa_after: after, sign, exponent, ..
                } = digits;
                let (after_width, exponent_width) = (self.mantissa_after, self.exponent);
                let number =
                    format!("{before}.{after:0<after_width$}e{sign}{exponent:0>exponent_width$}");
                format!("{number:>width$}")
            }
            Some(digits) => {
                let (Digits { before, after, .. }, after_width) = (digits, self.after);
                let number = format!("{before}.{after:<after_width$}");
                format!("{number:>width$}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(values: &[Value]) -> String {
        let mut format = Format::default();
        values.iter().for_each(|&value| format.measure(value));
        let words: Vec<_> = values.iter().map(|&value| format.text(value)).collect();
        format!("[{}]", words.join(" "))
    }

    fn singles<const N: usize>(numbers: [f32; N]) -> String {
        shown(&numbers.map(Value::Single))
    }

    fn doubles<const N: usize>(numbers: [f64; N]) -> String {
        shown(&numbers.map(Value::Double))
    }

    /// The expected texts come from `numpy.array`.
    #[test]
    fn numbers_are_written_as_numpy_writes_them() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(singles([0.0, 1.0 / 3.0, 2.0 / 3.0]), "[0.         0.33333334 0.6666667 ]");
        assert_eq!(singles([1e-5, 1e5, 0.0]), "[1.e-05 1.e+05 0.e+00]");
        assert_eq!(
            singles([1.5, -2.0, nan, inf, -0.0, 1e-3]),
            "[ 1.5e+00 -2.0e+00      nan      inf -0.0e+00  1.0e-03]"
        );
        assert_eq!(singles([nan, inf, -inf]), "[ nan  inf -inf]");
        assert_eq!(singles([1.0, nan, -inf]), "[  1.  nan -inf]");
        assert_eq!(singles([99_999_999.0, 1.0]), "[1.e+08 1.e+00]");
        assert_eq!(singles([100_000.0, 99.9]), "[1.00e+05 9.99e+01]");
        assert_eq!(singles([0.000_123_456_78, 0.0001]), "[0.00012346 0.0001    ]");
        assert_eq!(doubles([1e100, 1.0, -1e-5]), "[ 1.e+100  1.e+000 -1.e-005]");
        assert_eq!(doubles([0.1, 1.0 / 3.0, -12.5]), "[  0.1          0.33333333 -12.5       ]");
        let integers = [-5, 100, 7].map(Value::Signed);
        assert_eq!(shown(&integers), "[ -5 100   7]");
        assert_eq!(shown(&[Value::Bool(true), Value::Bool(false)]), "[ True False]");
        let complex = [Value::Complex(1.0, 2.0), Value::Complex(-0.5, -1.25)];
        assert_eq!(shown(&complex), "[ 1. +2.j   -0.5-1.25j]");
        let complex = [Value::Complex(1e9, 2.0), Value::Complex(nan, -inf)];
        assert_eq!(shown(&complex), "[1.e+09 +2.j    nan-infj]");
    }
}
