//! [`Difference`]: how far the values of two tensors of the same shape are apart.

use pulp::{Simd, WithSimd};

use super::tolerance::Tolerance;
use crate::model::vectors;

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
    /// Returns `true` if all values are equal.
    pub(crate) fn is_none(&self) -> bool {
        self.values == 0 && self.other_bits == 0
    }

    /// Adds the differences of another piece of the same tensors.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.other_bits += other.other_bits;
        self.of += other.of;
        self.max_absolute = self.max_absolute.max(other.max_absolute);
        self.max_relative = self.max_relative.max(other.max_relative);
    }

    /// Compares numbers in pairs.
    pub(super) fn of_numbers(a: &[f64], b: &[f64], tolerance: Tolerance) -> Self {
        vectors::dispatch(Pairs { a, b, limits: tolerance.limits() })
    }

    /// Adds a pair, which is counted already.
    #[inline(always)]
    fn add(&mut self, a: f64, b: f64, (most, part): (f64, f64)) {
        if a == b || (a.is_nan() && b.is_nan()) {
            return;
        }
        let larger = a.abs().max(b.abs());
        let distance = if a.is_nan() || b.is_nan() { f64::INFINITY } else { (a - b).abs() };
        let relative = if larger.is_finite() { distance / larger } else { f64::INFINITY };
        self.add_distance(distance, relative, (most, part));
    }

    #[inline(always)]
    fn add_distance(&mut self, distance: f64, relative: f64, (most, part): (f64, f64)) {
        self.values += u64::from(distance > most && relative > part);
        self.max_absolute = self.max_absolute.max(distance);
        self.max_relative = self.max_relative.max(relative);
    }

    /// Compares 64-bit integers in pairs, exactly: as floating point, two that differ could become
    /// equal.
    pub(super) fn of_integers<T: Copy + PartialEq>(
        pairs: impl Iterator<Item = (T, T)>,
        distance: impl Fn(T, T) -> u64,
        magnitude: impl Fn(T) -> u64,
        tolerance: Tolerance,
    ) -> Self {
        let (mut all, limits) = (Self::default(), tolerance.limits());
        for (a, b) in pairs {
            all.of += 1;
            if a != b {
                let distance = distance(a, b) as f64;
                let larger = magnitude(a).max(magnitude(b)) as f64;
                all.add_distance(distance, distance / larger, limits);
            }
        }
        all
    }
}

/// Numbers in pairs, and the largest distances that are allowed.
struct Pairs<'a> {
    a: &'a [f64],
    b: &'a [f64],
    limits: (f64, f64),
}

/// Uses the widest vector instructions of this machine. Equal to [`Difference::add`] for each pair,
/// but without branches.
impl WithSimd for Pairs<'_> {
    type Output = Difference;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Difference {
        let of = self.a.len() as u64;
        let ((a, a_rest), (b, b_rest)) = (S::as_simd_f64s(self.a), S::as_simd_f64s(self.b));
        let splat = |value| simd.splat_f64s(value);
        let (zero, one, infinity) = (splat(0.0), splat(1.0), splat(f64::INFINITY));
        let (most, part) = (splat(self.limits.0), splat(self.limits.1));
        let is_nan = |values| simd.not_m64s(simd.equal_f64s(values, values));
        let (mut differ, mut max_absolute, mut max_relative) = (zero, zero, zero);
        for (&a, &b) in a.iter().zip(b) {
            let are_nan = simd.and_m64s(is_nan(a), is_nan(b));
            let are_same = simd.or_m64s(simd.equal_f64s(a, b), are_nan);
            let larger = simd.max_f64s(simd.abs_f64s(a), simd.abs_f64s(b));
            let distance = simd.abs_f64s(simd.sub_f64s(a, b));
            // NaN is not less than infinity.
            let is_finite = simd.less_than_f64s(distance, infinity);
            let distance = simd.select_f64s(is_finite, distance, infinity);
            let relative = simd.div_f64s(distance, larger);
            let is_finite = simd.less_than_f64s(larger, infinity);
            let relative = simd.select_f64s(is_finite, relative, infinity);
            let distance = simd.select_f64s(are_same, zero, distance);
            let relative = simd.select_f64s(are_same, zero, relative);
            let are_near = simd.or_m64s(
                simd.less_than_or_equal_f64s(distance, most),
                simd.less_than_or_equal_f64s(relative, part),
            );
            let are_equal = simd.or_m64s(are_same, are_near);
            differ = simd.add_f64s(differ, simd.select_f64s(are_equal, zero, one));
            max_absolute = simd.max_f64s(max_absolute, distance);
            max_relative = simd.max_f64s(max_relative, relative);
        }
        let mut all = Difference {
            // A block has far fewer pairs than 2⁵³.
            values: simd.reduce_sum_f64s(differ) as u64,
            max_absolute: simd.reduce_max_f64s(max_absolute),
            max_relative: simd.reduce_max_f64s(max_relative),
            of,
            other_bits: 0,
        };
        a_rest.iter().zip(b_rest).for_each(|(&a, &b)| all.add(a, b, self.limits));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(a: &[f64], b: &[f64], absolute: f64, relative: f64) -> Difference {
        Difference::of_numbers(a, b, Tolerance::new(absolute, relative))
    }

    #[test]
    fn equal_values_have_no_difference() {
        let (a, b) = ([0.0, f64::NAN, f64::INFINITY], [-0.0, -f64::NAN, f64::INFINITY]);
        let equal = Difference { of: 3, ..Difference::default() };
        assert_eq!(distances(&a, &b, 0.0, 0.0), equal);
        assert_eq!(Difference::of_numbers(&a, &b, Tolerance::default()), equal);
    }

    #[test]
    fn no_tolerance_makes_nan_equal_to_a_number() {
        for (a, b) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::INFINITY, f64::NEG_INFINITY)] {
            let apart = distances(&[a], &[b], f64::MAX, f64::MAX);
            assert_eq!((apart.values, apart.max_absolute), (1, f64::INFINITY), "{a} {b}");
            assert_eq!(apart.max_relative, f64::INFINITY, "{a} {b}");
        }
    }

    #[test]
    fn integers_are_compared_exactly() {
        let pairs = [(1 << 53, (1 << 53) + 1), (i64::MIN, i64::MAX), (7, 7)];
        let all = |tolerance| {
            let pairs = pairs.into_iter();
            Difference::of_integers(pairs, i64::abs_diff, i64::unsigned_abs, tolerance)
        };
        let exact = all(Tolerance::default());
        assert_eq!((exact.values, exact.max_relative), (2, 2.0));
        assert_eq!(all(Tolerance::new(1.0, 0.0)).values, 1);
        assert_eq!(all(Tolerance::new(0.0, 2.0)).values, 0);
    }

    #[test]
    fn distances_count_only_above_the_tolerance() {
        let (a, b) = ([1.0, 100.0, -2.0], [1.5, 99.0, -2.0]);
        let exact = distances(&a, &b, 0.0, 0.0);
        assert_eq!((exact.values, exact.max_absolute), (2, 1.0));
        assert!((exact.max_relative - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(distances(&a, &b, 0.5, 0.0).values, 1);
        assert_eq!(distances(&a, &b, 0.5, 0.01).values, 0);
    }

    /// The lanes and the rest agree with the definition, pair by pair.
    #[test]
    fn every_pair_of_values_counts_at_any_position() {
        let special = [0.0, -0.0, 1.0, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324];
        let pairs: Vec<(f64, f64)> =
            special.into_iter().flat_map(|a| special.map(|b| (a, b))).collect();
        for len in [0, 1, 7, 8, 9, 61, 64] {
            let (a, b): (Vec<_>, Vec<_>) = pairs[..len].iter().copied().unzip();
            let mut expected = Difference { of: len as u64, ..Difference::default() };
            for &(a, b) in &pairs[..len] {
                if a == b || a.is_nan() && b.is_nan() {
                    continue;
                }
                let larger = a.abs().max(b.abs());
                let is_nan = a.is_nan() || b.is_nan();
                let absolute = if is_nan { f64::INFINITY } else { (a - b).abs() };
                let is_finite = larger.is_finite() && !is_nan;
                let relative = if is_finite { absolute / larger } else { f64::INFINITY };
                expected.values += u64::from(absolute > 1.0);
                expected.max_absolute = expected.max_absolute.max(absolute);
                expected.max_relative = expected.max_relative.max(relative);
            }
            for found in vectors::on_each_width(|| distances(&a, &b, 1.0, 0.0)) {
                assert_eq!(found, expected, "{len}");
            }
        }
    }
}
