//! [`Distances`]: how far pairs of numbers are apart.

use super::tolerance::Tolerance;

/// The number of pairs that are compared at a time, each in a lane of its own. So the compiler can
/// use vector instructions.
const LANES: usize = 8;

/// How many of some pairs of numbers differ, and the largest distances between them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Distances {
    /// The number of pairs that are further apart than the tolerance.
    pub(super) differ: u64,
    /// The largest distance. NaN on one side only is infinitely far away.
    pub(super) max_absolute: f64,
    /// The largest distance as a part of the larger number.
    pub(super) max_relative: f64,
}

/// The same for each lane.
#[derive(Default)]
struct Lanes {
    differ: [u64; LANES],
    max_absolute: [f64; LANES],
    max_relative: [f64; LANES],
}

impl Distances {
    /// Compares numbers in pairs.
    pub(super) fn of(a: &[f64], b: &[f64], tolerance: Tolerance) -> Self {
        let limits = tolerance.limits();
        let lanes = pulp::Arch::new().dispatch(|| Lanes::of(a, b, limits));
        Self {
            differ: lanes.differ.iter().sum(),
            max_absolute: lanes.max_absolute.into_iter().fold(0.0, f64::max),
            max_relative: lanes.max_relative.into_iter().fold(0.0, f64::max),
        }
    }

    /// Compares 64-bit integers in pairs, exactly: as floating point, two that differ could become
    /// equal.
    pub(super) fn of_integers<T: Copy + PartialEq>(
        pairs: impl Iterator<Item = (T, T)>,
        distance: impl Fn(T, T) -> u64,
        magnitude: impl Fn(T) -> u64,
        tolerance: Tolerance,
    ) -> Self {
        let (mut all, (most, part)) = (Self::default(), tolerance.limits());
        for (a, b) in pairs.filter(|(a, b)| a != b) {
            let (distance, larger) = (distance(a, b) as f64, magnitude(a).max(magnitude(b)) as f64);
            let relative = distance / larger;
            all.differ += u64::from(distance > most && relative > part);
            all.max_absolute = all.max_absolute.max(distance);
            all.max_relative = all.max_relative.max(relative);
        }
        all
    }
}

impl Lanes {
    /// Inlined, so that it is compiled for the vector instructions of this machine.
    #[inline(always)]
    fn of(a: &[f64], b: &[f64], limits: (f64, f64)) -> Self {
        let mut lanes = Self::default();
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for lane in 0..LANES {
                lanes.add(lane, a[lane], b[lane], limits);
            }
        }
        for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
            lanes.add(lane, a, b, limits);
        }
        lanes
    }

    /// Adds a pair. A branch here would prevent vector instructions.
    #[inline(always)]
    fn add(&mut self, lane: usize, a: f64, b: f64, (most, part): (f64, f64)) {
        let (a_nan, b_nan) = (a.is_nan(), b.is_nan());
        let is_same = (a == b) | (a_nan & b_nan);
        let larger = if a.abs() > b.abs() { a.abs() } else { b.abs() };
        let distance = if a_nan | b_nan { f64::INFINITY } else { (a - b).abs() };
        let distance = if is_same { 0.0 } else { distance };
        let relative = if larger < f64::INFINITY { distance / larger } else { f64::INFINITY };
        let relative = if is_same { 0.0 } else { relative };
        let is_allowed = is_same | (distance <= most) | (relative <= part);
        self.differ[lane] += u64::from(!is_allowed);
        let (absolute, before) = (distance, (self.max_absolute[lane], self.max_relative[lane]));
        self.max_absolute[lane] = if absolute > before.0 { absolute } else { before.0 };
        self.max_relative[lane] = if relative > before.1 { relative } else { before.1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(a: &[f64], b: &[f64], absolute: f64, relative: f64) -> Distances {
        Distances::of(a, b, Tolerance::new(absolute, relative))
    }

    #[test]
    fn what_has_the_same_value_is_equal() {
        let (a, b) = ([0.0, f64::NAN, f64::INFINITY], [-0.0, -f64::NAN, f64::INFINITY]);
        assert_eq!(distances(&a, &b, 0.0, 0.0), Distances::default());
        assert_eq!(Distances::of(&a, &b, Tolerance::default()), Distances::default());
    }

    #[test]
    fn no_tolerance_makes_nan_equal_to_a_number() {
        for (a, b) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::INFINITY, f64::NEG_INFINITY)] {
            let apart = distances(&[a], &[b], f64::MAX, f64::MAX);
            assert_eq!((apart.differ, apart.max_absolute), (1, f64::INFINITY), "{a} {b}");
            assert_eq!(apart.max_relative, f64::INFINITY, "{a} {b}");
        }
    }

    #[test]
    fn integers_are_compared_exactly() {
        let pairs = [(1 << 53, (1 << 53) + 1), (i64::MIN, i64::MAX), (7, 7)];
        let all = |tolerance| {
            let pairs = pairs.into_iter();
            Distances::of_integers(pairs, i64::abs_diff, i64::unsigned_abs, tolerance)
        };
        let exact = all(Tolerance::default());
        assert_eq!((exact.differ, exact.max_relative), (2, 2.0));
        assert_eq!(all(Tolerance::new(1.0, 0.0)).differ, 1);
        assert_eq!(all(Tolerance::new(0.0, 2.0)).differ, 0);
    }

    #[test]
    fn distances_and_tolerances() {
        let (a, b) = ([1.0, 100.0, -2.0], [1.5, 99.0, -2.0]);
        let exact = distances(&a, &b, 0.0, 0.0);
        assert_eq!((exact.differ, exact.max_absolute), (2, 1.0));
        assert!((exact.max_relative - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(distances(&a, &b, 0.5, 0.0).differ, 1);
        assert_eq!(distances(&a, &b, 0.5, 0.01).differ, 0);
    }

    /// The lanes and the rest agree with the definition, pair by pair.
    #[test]
    fn every_pair_counts_wherever_it_stands() {
        let special = [0.0, -0.0, 1.0, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324];
        let pairs: Vec<(f64, f64)> =
            special.into_iter().flat_map(|a| special.map(|b| (a, b))).collect();
        for len in [0, 1, 7, 8, 9, 61, 64] {
            let (a, b): (Vec<_>, Vec<_>) = pairs[..len].iter().copied().unzip();
            let mut expected = Distances::default();
            for &(a, b) in &pairs[..len] {
                if a == b || a.is_nan() && b.is_nan() {
                    continue;
                }
                let larger = a.abs().max(b.abs());
                let is_nan = a.is_nan() || b.is_nan();
                let absolute = if is_nan { f64::INFINITY } else { (a - b).abs() };
                let is_finite = larger.is_finite() && !is_nan;
                let relative = if is_finite { absolute / larger } else { f64::INFINITY };
                expected.differ += u64::from(absolute > 1.0);
                expected.max_absolute = expected.max_absolute.max(absolute);
                expected.max_relative = expected.max_relative.max(relative);
            }
            assert_eq!(distances(&a, &b, 1.0, 0.0), expected, "{len}");
        }
    }
}
