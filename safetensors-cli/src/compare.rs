//! [`Difference`]: how far the values of two tensors of one shape are apart.

use safetensors_core::{Dtype, LazyTensor, ReadAt, Result};

use crate::values::numbers;

/// How far two numbers may be apart and still count as equal.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Tolerance {
    /// Values are equal if they are no further apart than this
    #[arg(long = "tolerance", value_name = "X", default_value_t = 0.0, hide_default_value = true, value_parser = amount)]
    absolute: f64,
    /// Values are equal if they are no further apart than this part of the larger one, such as 1e-3
    #[arg(long = "relative-tolerance", value_name = "X", default_value_t = 0.0, hide_default_value = true, value_parser = amount)]
    relative: f64,
}

fn amount(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err("expected a number of 0 or more".into()),
    }
}

/// What differs between the values of two tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Difference {
    /// The values that are further apart than the tolerance.
    pub(crate) values: u64,
    /// Of how many.
    pub(crate) of: u64,
    /// The largest distance. NaN on one side only is infinitely far away.
    pub(crate) max_absolute: f64,
    /// The largest distance as a part of the larger of the two values.
    pub(crate) max_relative: f64,
}

impl Difference {
    /// Compares tensors of the same shape, piece by piece. Of equal dtypes, pieces with the same bits are not looked at further.
    ///
    /// Without a tolerance, what has the same value is equal: 0 and -0, and NaN whatever its bits.
    pub(crate) fn of<S: ReadAt>(
        a: &LazyTensor<'_, S>,
        b: &LazyTensor<'_, S>,
        tolerance: Tolerance,
        done: impl Fn(u64),
    ) -> Result<Self> {
        let mut difference = Self::default();
        for (left, right) in a.pieces().zip(b.pieces()) {
            let (left, right) = (left?, right?);
            done((left.bytes().len() + right.bytes().len()) as u64);
            if a.dtype() == b.dtype() && left.bytes() == right.bytes() {
                difference.of += left.shape().iter().product::<usize>() as u64;
                continue;
            }
            // As floating-point numbers, large integers that differ could be the same.
            match (a.dtype(), b.dtype()) {
                (Dtype::I64, Dtype::I64) => {
                    let (left, right) = (left.as_slice()?, right.as_slice()?);
                    difference.add_integers(left, right, i64::abs_diff, i64::unsigned_abs, tolerance);
                    continue;
                }
                (Dtype::U64, Dtype::U64) => {
                    let (left, right) = (left.as_slice()?, right.as_slice()?);
                    difference.add_integers(left, right, u64::abs_diff, |value| value, tolerance);
                    continue;
                }
                _ => {}
            }
            let left = numbers(left).map_err(|error| a.locate(error))?;
            let right = numbers(right).map_err(|error| b.locate(error))?;
            difference.add(&left, &right, tolerance);
        }
        Ok(difference)
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

    /// Counts two values that are not the same.
    fn add_one(&mut self, distance: f64, relative: f64, tolerance: Tolerance) {
        self.max_absolute = self.max_absolute.max(distance);
        self.max_relative = self.max_relative.max(relative);
        let equal = distance <= tolerance.absolute || relative <= tolerance.relative;
        self.values += u64::from(!equal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(a: &[f64], b: &[f64], absolute: f64, relative: f64) -> Difference {
        let mut difference = Difference::default();
        difference.add(a, b, Tolerance { absolute, relative });
        difference
    }

    #[test]
    fn what_has_the_same_value_is_equal() {
        let same = difference(&[0.0, f64::NAN, f64::INFINITY], &[-0.0, -f64::NAN, f64::INFINITY], 0.0, 0.0);
        assert_eq!(same, Difference { of: 3, ..Difference::default() });
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
        let compare = || Difference::of(&tensor, &tensor, Tolerance::default(), |_| ());
        assert_eq!(compare().unwrap(), Difference { of: 9, ..Difference::default() });
        let file: File = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
        for error in [compare().unwrap_err(), crate::values::for_each(&tensor, |_, _| ()).unwrap_err()] {
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
