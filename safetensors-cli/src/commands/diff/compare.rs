//! [`Difference`]: how far the values of two tensors of the same shape are apart.

use safetensors_core::load::Piece;
use safetensors_core::{Dtype, ReadAt, Result, TensorBuf, TensorView};

use crate::values::{self, numbers};

/// How far apart two numbers may be and still count as equal. Without either option, values are
/// equal only if their bits are equal.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Tolerance {
    /// Treat values at most X apart as equal; 0 compares as numbers, not as bits
    #[arg(
        long = "tolerance",
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = amount
    )]
    absolute: Option<f64>,
    /// Treat values as equal that differ by at most this part of the larger, such as 1e-3
    #[arg(
        long = "relative-tolerance",
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = amount
    )]
    relative: Option<f64>,
}

impl Tolerance {
    /// Whether values are equal only if their bits are equal.
    fn is_none(self) -> bool {
        self.absolute.is_none() && self.relative.is_none()
    }

    fn allows(self, distance: f64, relative: f64) -> bool {
        self.absolute.is_some_and(|most| distance <= most)
            || self.relative.is_some_and(|most| relative <= most)
    }
}

fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // An infinite tolerance would make NaN equal to a number, and infinity to a finite one.
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a finite number of 0 or more".into()),
    }
}

/// The differences between the values of two tensors. Each part of a complex number is a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Difference {
    /// The number of values that are further apart than the tolerance.
    pub(crate) values: u64,
    /// The number of values that are equal as numbers but differ in their bits: 0 and -0, and the
    /// many kinds of NaN. It is 0 if there is a tolerance or if the dtypes differ.
    pub(crate) other_bits: u64,
    /// The number of values that were compared.
    pub(crate) of: u64,
    /// The largest distance. NaN on one side only is infinitely far away.
    pub(crate) max_absolute: f64,
    /// The largest distance as a part of the larger of the two values.
    pub(crate) max_relative: f64,
}

impl Difference {
    /// Whether all values are equal.
    pub(crate) fn is_none(&self) -> bool {
        self.values == 0 && self.other_bits == 0
    }

    /// Compares the same piece of two tensors of the same shape. Pieces of the same dtype and the
    /// same bytes are equal without a look at their values.
    pub(crate) fn of<S: ReadAt>(
        a: &Piece<'_, S>,
        b: &Piece<'_, S>,
        tolerance: Tolerance,
    ) -> Result<Self> {
        let (left, right) = (a.tensor().dtype(), b.tensor().dtype());
        if left == right {
            let (left_bytes, right_bytes) = (a.read_bytes()?, b.read_bytes()?);
            let difference =
                Self::of_bytes(left, a.element_count(), &left_bytes, &right_bytes, tolerance);
            return difference.map_err(|error| a.tensor().locate(error));
        }
        let complex = |values: Vec<f64>| values.into_iter().flat_map(|real| [real, 0.0]).collect();
        let (mut a, mut b) = (values::of(a)?, values::of(b)?);
        match (left, right) {
            (Dtype::C64, _) => b = complex(b),
            (_, Dtype::C64) => a = complex(a),
            _ => {}
        }
        let mut difference = Self::default();
        difference.add(&a, &b, tolerance);
        Ok(difference)
    }

    /// Compares elements of the same dtype.
    fn of_bytes(
        dtype: Dtype,
        elements: u64,
        a: &[u8],
        b: &[u8],
        tolerance: Tolerance,
    ) -> Result<Self> {
        let mut difference = Self::default();
        if a == b {
            difference.of = if dtype == Dtype::C64 { 2 * elements } else { elements };
            return Ok(difference);
        }
        // As U8, bytes that are not booleans can be compared too.
        let dtype = if dtype == Dtype::BOOL { Dtype::U8 } else { dtype };
        let shape = [elements as usize];
        let buf = |bytes| TensorBuf::from_view(&TensorView::new(dtype, &shape, bytes)?);
        let (left, right) = (buf(a)?, buf(b)?);
        match dtype {
            // Converted to floating point, large integers that differ could become equal.
            Dtype::I64 => {
                let (left, right) = (left.as_slice()?, right.as_slice()?);
                difference.add_integers(left, right, i64::abs_diff, i64::unsigned_abs, tolerance);
            }
            Dtype::U64 => {
                let (left, right) = (left.as_slice()?, right.as_slice()?);
                difference.add_integers(left, right, u64::abs_diff, |value| value, tolerance);
            }
            _ => {
                let (left, right) = (numbers(left)?, numbers(right)?);
                difference.add(&left, &right, tolerance);
                if tolerance.is_none() {
                    let other_bits = match dtype.bits() {
                        // Packed elements have no NaN, so their values determine their bits.
                        ..8 => count_different(
                            left.iter().map(|n| n.to_bits()),
                            right.iter().map(|n| n.to_bits()),
                        ),
                        // The parts of a complex number one by one.
                        _ => count_different(
                            a.chunks(dtype.alignment()),
                            b.chunks(dtype.alignment()),
                        ),
                    };
                    difference.other_bits = other_bits - difference.values;
                }
            }
        }
        Ok(difference)
    }

    /// Adds the differences of another piece of the same tensors.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.other_bits += other.other_bits;
        self.of += other.of;
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_relative = self.max_relative.max(other.max_relative);
    }

    fn add(&mut self, a: &[f64], b: &[f64], tolerance: Tolerance) {
        self.of += a.len() as u64;
        for (&a, &b) in a.iter().zip(b) {
            if a == b || (a.is_nan() && b.is_nan()) {
                continue;
            }
            let larger = a.abs().max(b.abs());
            let distance = if a.is_nan() || b.is_nan() { f64::INFINITY } else { (a - b).abs() };
            let relative = if larger.is_finite() { distance / larger } else { f64::INFINITY };
            self.add_one(distance, relative, tolerance);
        }
    }

    fn add_integers<T: Copy + PartialEq>(
        &mut self,
        a: &[T],
        b: &[T],
        distance: impl Fn(T, T) -> u64,
        magnitude: impl Fn(T) -> u64,
        tolerance: Tolerance,
    ) {
        self.of += a.len() as u64;
        for (&a, &b) in a.iter().zip(b).filter(|(a, b)| a != b) {
            let (distance, larger) = (distance(a, b) as f64, magnitude(a).max(magnitude(b)) as f64);
            self.add_one(distance, distance / larger, tolerance);
        }
    }

    /// Counts a pair of values that are not the same.
    fn add_one(&mut self, distance: f64, relative: f64, tolerance: Tolerance) {
        self.max_absolute = self.max_absolute.max(distance);
        self.max_relative = self.max_relative.max(relative);
        self.values += u64::from(!tolerance.allows(distance, relative));
    }
}

/// The number of pairs that are not equal.
fn count_different<T: PartialEq>(a: impl Iterator<Item = T>, b: impl Iterator<Item = T>) -> u64 {
    a.zip(b).filter(|(a, b)| a != b).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(a: &[f64], b: &[f64], absolute: f64, relative: f64) -> Difference {
        let mut difference = Difference::default();
        difference.add(a, b, Tolerance { absolute: Some(absolute), relative: Some(relative) });
        difference
    }

    #[test]
    fn what_has_the_same_value_is_equal() {
        let same = difference(
            &[0.0, f64::NAN, f64::INFINITY],
            &[-0.0, -f64::NAN, f64::INFINITY],
            0.0,
            0.0,
        );
        assert_eq!(same, Difference { of: 3, ..Difference::default() });
    }

    #[test]
    fn other_bits_are_a_difference_unless_there_is_a_tolerance() {
        let bytes = |numbers: [u32; 4]| numbers.map(u32::to_le_bytes).concat();
        let (nan, other_nan, minus_zero) = (0x7fc0_0000, 0x7fc0_0001, 0x8000_0000);
        let a = bytes([0, nan, 0x3f80_0000, nan]);
        let b = bytes([minus_zero, other_nan, 0x4000_0000, nan]);
        let exact = Difference::of_bytes(Dtype::F32, 4, &a, &b, Tolerance::default()).unwrap();
        assert_eq!((exact.values, exact.other_bits, exact.of, exact.max_absolute), (1, 2, 4, 1.0));
        let zero = Tolerance { absolute: Some(0.0), relative: None };
        let equal = Difference::of_bytes(Dtype::F32, 4, &a, &b, zero).unwrap();
        assert_eq!((equal.values, equal.other_bits, equal.of), (1, 0, 4));
        // Both parts of a complex number, and both halves of a byte, are values.
        let complex = Difference::of_bytes(Dtype::C64, 2, &a, &b, Tolerance::default()).unwrap();
        assert_eq!((complex.values, complex.other_bits, complex.of), (1, 2, 4));
        let packed =
            Difference::of_bytes(Dtype::F4, 4, &[0x10, 0x21], &[0x18, 0x31], Tolerance::default())
                .unwrap();
        assert_eq!((packed.values, packed.other_bits, packed.of), (1, 1, 4));
        let same = Difference::of_bytes(Dtype::C64, 2, &a, &a, Tolerance::default()).unwrap();
        assert_eq!(same, Difference { of: 4, ..Difference::default() });
    }

    #[test]
    fn no_tolerance_makes_nan_equal_to_a_number() {
        assert!(
            amount("inf").is_err()
                && amount("1e999").is_err()
                && amount("-1").is_err()
                && amount("NaN").is_err()
        );
        assert_eq!(difference(&[f64::NAN], &[1.0], f64::MAX, f64::MAX).values, 1);
    }

    #[test]
    fn integers_are_compared_exactly() {
        let mut difference = Difference::default();
        let (a, b) = ([1 << 53, i64::MIN, 7], [(1 << 53) + 1, i64::MAX, 7]);
        difference.add_integers(&a, &b, i64::abs_diff, i64::unsigned_abs, Tolerance::default());
        assert_eq!((difference.values, difference.of, difference.max_relative), (2, 3, 2.0));
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_an_error() {
        use std::fs::{File, OpenOptions};
        use std::time::{Duration, SystemTime};

        use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let values = [1_u8; 9];
        let tensors = [("w", TensorView::from_slice(&[9], &values).unwrap())];
        save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = checkpoint.tensor("w").unwrap();
        let piece = tensor.pieces().next().unwrap();
        let compare = || Difference::of(&piece, &piece, Tolerance::default());
        assert_eq!(compare().unwrap(), Difference { of: 9, ..Difference::default() });
        let file: File = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
        for error in [compare().unwrap_err(), values::of(&piece).unwrap_err()] {
            assert!(error.to_string().contains("tensor \"w\": the file has changed"), "{error}");
        }
    }

    #[test]
    fn distances_and_tolerances() {
        let (a, b) = ([1.0, 100.0, -2.0], [1.5, 99.0, -2.0]);
        let exact = difference(&a, &b, 0.0, 0.0);
        assert_eq!((exact.values, exact.of, exact.max_absolute), (2, 3, 1.0));
        assert!((exact.max_relative - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(difference(&a, &b, 0.5, 0.0).values, 1);
        assert_eq!(difference(&a, &b, 0.5, 0.01).values, 0);
        let apart = difference(&[f64::NAN, f64::INFINITY], &[1.0, 1.0], 1e9, 0.9);
        assert_eq!((apart.values, apart.max_absolute), (2, f64::INFINITY));
    }
}
