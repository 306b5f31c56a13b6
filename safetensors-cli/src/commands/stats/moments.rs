//! [`Moments`]: statistics of numbers, gathered piece by piece.

use pulp::{Simd, WithSimd};

use crate::model::vectors;

/// How many values are summed at a time.
// They stay in the nearest cache.
pub(super) const BLOCK: usize = 2048;

/// The lanes of the widest vector.
// Narrower vectors replace a wide one, so numbers are added in equal order on every processor, and
// a file has the same mean and deviation everywhere.
const LANES: usize = 8;

/// NaN and infinities are counted, and excluded from the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Moments {
    /// The number of finite values.
    pub(crate) finite: u64,
    pub(crate) zeros: u64,
    pub(crate) nan: u64,
    pub(crate) infinite: u64,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) mean: Option<f64>,
    /// The standard deviation of the values as a whole population.
    pub(crate) std: Option<f64>,
    /// The sum of the squared distances from the mean.
    #[serde(skip)]
    squares: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Magnitudes {
    /// The smallest but 0; infinity without any other.
    pub(super) smallest: f64,
    pub(super) largest: f64,
    pub(super) has_zeros: bool,
}

#[derive(Clone, Copy)]
struct Pass {
    /// The sums of the distances from the shift, and of their squares.
    sum: f64,
    squares: f64,
    min: f64,
    max: f64,
    zeros: f64,
    /// The smallest magnitude but 0.
    smallest: f64,
}

impl Moments {
    pub(crate) fn add(&mut self, values: &[f64]) {
        for block in values.chunks(BLOCK) {
            self.add_block(block);
        }
    }

    /// Takes at most [`BLOCK`] values. Returns magnitudes if all are finite.
    pub(super) fn add_block(&mut self, block: &[f64]) -> Option<Magnitudes> {
        let found = self.of_finite(block);
        match &found {
            Some((moments, _)) => self.merge(moments),
            None => self.add_some_finite(block),
        }
        found.map(|(_, magnitudes)| magnitudes)
    }

    fn add_some_finite(&mut self, block: &[f64]) {
        let finite: Vec<f64> = block.iter().copied().filter(|value| value.is_finite()).collect();
        let nan = block.iter().filter(|value| value.is_nan()).count() as u64;
        self.nan += nan;
        self.infinite += (block.len() - finite.len()) as u64 - nan;
        if let Some((moments, _)) = self.of_finite(&finite) {
            self.merge(&moments);
        }
    }

    /// Returns `None` for NaN, infinity or an empty block.
    fn of_finite(&self, block: &[f64]) -> Option<(Self, Magnitudes)> {
        let n = block.len() as f64;
        // Distances from a number near the mean lose few digits when they are squared. The current
        // mean is near enough. Where it is not, the distance of the two means dominates.
        let shift = self.mean.or(block.first().copied())?;
        let pass = vectors::dispatch(Sums { block, shift });
        if block.is_empty() {
            return None;
        }
        let (mean, squares) = match (shift + pass.sum / n, pass.squares - pass.sum * pass.sum / n) {
            (mean, squares) if mean.is_finite() && squares.is_finite() => (mean, squares.max(0.0)),
            // NaN and infinities are in the sum, too.
            _ if block.iter().all(|value| value.is_finite()) => sums_that_overflow(block),
            _ => return None,
        };
        let moments = Self {
            finite: block.len() as u64,
            zeros: pass.zeros as u64,
            min: Some(unsigned(pass.min)),
            max: Some(unsigned(pass.max)),
            mean: Some(unsigned(mean.clamp(pass.min, pass.max))),
            squares,
            ..Self::default()
        };
        let magnitudes = Magnitudes {
            smallest: pass.smallest,
            largest: pass.min.abs().max(pass.max.abs()),
            has_zeros: pass.zeros > 0.0,
        };
        Some((moments.with_std(), magnitudes))
    }

    /// The moments of finite values that each occur several times.
    pub(crate) fn of_counted(values: impl Iterator<Item = (f64, u64)> + Clone) -> Self {
        let values = values.filter(|&(_, count)| count > 0);
        let finite: u64 = values.clone().map(|(_, count)| count).sum();
        if finite == 0 {
            return Self::default();
        }
        let sum = |term: &dyn Fn(f64) -> f64| -> f64 {
            values.clone().map(|(value, count)| term(value) * count as f64).sum()
        };
        let mean = sum(&|value| value) / finite as f64;
        let zeros = values.clone().filter(|&(value, _)| value == 0.0);
        Self {
            finite,
            zeros: zeros.map(|(_, count)| count).sum(),
            min: values.clone().map(|(value, _)| value).reduce(f64::min).map(unsigned),
            max: values.clone().map(|(value, _)| value).reduce(f64::max).map(unsigned),
            mean: Some(unsigned(mean)),
            squares: sum(&|value| (value - mean) * (value - mean)),
            ..Self::default()
        }
        .with_std()
    }

    /// Merges two sets by the formula of Chan, Golub and LeVeque.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.nan += other.nan;
        self.infinite += other.infinite;
        let (Some(theirs), true) = (other.mean, other.finite > 0) else { return };
        let ours = self.mean.unwrap_or(theirs);
        let (n, more) = (self.finite as f64, other.finite as f64);
        let (total, distance) = (n + more, theirs - ours);
        self.mean = Some(match distance {
            distance if distance.is_finite() => ours + distance * (more / total),
            _ => ours * (n / total) + theirs * (more / total),
        });
        self.squares += other.squares + distance * distance * (n * more / total);
        self.finite += other.finite;
        self.zeros += other.zeros;
        self.min = self.min.into_iter().chain(other.min).reduce(f64::min);
        self.max = self.max.into_iter().chain(other.max).reduce(f64::max);
        *self = self.with_std();
    }

    fn with_std(self) -> Self {
        Self { std: Some((self.squares / self.finite as f64).sqrt()), ..self }
    }
}

/// Makes 0 of -0.
// Which of two zeros is the smaller one depends on the instructions.
fn unsigned(number: f64) -> f64 {
    number + 0.0
}

/// Returns the mean, and the sum of the squared distances from it.
fn sums_that_overflow(block: &[f64]) -> (f64, f64) {
    let mean = block.iter().map(|value| value / block.len() as f64).sum::<f64>();
    (mean, block.iter().map(|value| (value - mean) * (value - mean)).sum())
}

#[derive(Clone, Copy)]
struct Sums<'a> {
    block: &'a [f64],
    /// Subtracted from each value before it is summed.
    shift: f64,
}

impl WithSimd for Sums<'_> {
    type Output = Pass;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Pass {
        const { assert!(LANES.is_multiple_of(S::F64_LANES)) };
        let (rows, rest) = self.block.as_chunks::<LANES>();
        let splat = |value| simd.splat_f64s(value);
        let (zero, one, shift, infinity) =
            (splat(0.0), splat(1.0), splat(self.shift), splat(f64::INFINITY));
        let mut zeros = zero;
        let (mut min, mut max, mut smallest) = (infinity, splat(f64::NEG_INFINITY), infinity);
        // Only the first of these are in use, enough for a row. The order in which the others above
        // are computed makes no difference to them.
        let (mut sum, mut squares) = ([zero; LANES], [zero; LANES]);
        for row in rows {
            let (vectors, _) = S::as_simd_f64s(row);
            for at in 0..LANES / S::F64_LANES {
                let values = vectors[at];
                let distance = simd.sub_f64s(values, shift);
                sum[at] = simd.add_f64s(sum[at], distance);
                // Not fused: not every processor can, and it rounds once instead of twice.
                let square = simd.mul_f64s(distance, distance);
                squares[at] = simd.add_f64s(squares[at], square);
                min = simd.min_f64s(min, values);
                max = simd.max_f64s(max, values);
                let is_zero = simd.equal_f64s(values, zero);
                zeros = simd.add_f64s(zeros, simd.select_f64s(is_zero, one, zero));
                let magnitude = simd.select_f64s(is_zero, infinity, simd.abs_f64s(values));
                smallest = simd.min_f64s(smallest, magnitude);
            }
        }
        let mut pass = Pass {
            sum: 0.0,
            squares: 0.0,
            min: simd.reduce_min_f64s(min),
            max: simd.reduce_max_f64s(max),
            zeros: simd.reduce_sum_f64s(zeros),
            smallest: simd.reduce_min_f64s(smallest),
        };
        let (mut sum, mut squares) = (lanes::<S>(&sum), lanes::<S>(&squares));
        for (at, &value) in rest.iter().enumerate() {
            let distance = value - self.shift;
            sum[at] += distance;
            squares[at] += distance * distance;
            (pass.min, pass.max) = (pass.min.min(value), pass.max.max(value));
            if value == 0.0 {
                pass.zeros += 1.0;
            } else {
                pass.smallest = pass.smallest.min(value.abs());
            }
        }
        (pass.sum, pass.squares) = (in_pairs(sum), in_pairs(squares));
        pass
    }
}

/// Returns the numbers of the vectors that make up a row.
#[inline(always)]
fn lanes<S: Simd>(vectors: &[S::f64s; LANES]) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    let (row, _) = S::as_mut_simd_f64s(&mut lanes);
    row.iter_mut().zip(vectors).for_each(|(lane, vector)| *lane = *vector);
    lanes
}

fn in_pairs([a, b, c, d, e, f, g, h]: [f64; LANES]) -> f64 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.chunks(5000).for_each(|piece| moments.add(piece));
        moments
    }

    #[test]
    fn as_the_textbook_has_it() {
        let of = moments(&[
            2.0,
            4.0,
            4.0,
            4.0,
            5.0,
            5.0,
            7.0,
            9.0,
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ]);
        assert_eq!((of.finite, of.zeros, of.nan, of.infinite), (10, 2, 1, 2));
        assert_eq!((of.min, of.max, of.mean), (Some(0.0), Some(9.0), Some(4.0)));
        assert!((of.std.unwrap() - 7.2_f64.sqrt()).abs() < 1e-15);
        assert_eq!(moments(&[]), Moments::default());
        assert_eq!(moments(&[f64::NAN]).mean, None);
    }

    #[test]
    fn merged_moments_equal_the_moments_of_all_values() {
        let values: Vec<f64> =
            (0..20_000).map(|i| f64::from(i % 100)).chain([f64::NAN, f64::INFINITY]).collect();
        let (whole, mut parts) = (moments(&values), Moments::default());
        values.chunks(7001).for_each(|part| parts.merge(&moments(part)));
        assert_eq!((parts.finite, parts.zeros, parts.nan, parts.infinite), (20_000, 200, 1, 1));
        assert!(
            (parts.std.unwrap() - whole.std.unwrap()).abs() < 1e-12 && parts.mean == whole.mean,
            "{parts:?}"
        );
    }

    /// With vectors of each width that this machine has, down to one number.
    #[test]
    fn every_processor_finds_the_same_bits() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut values: Vec<f64> =
            (0..10_007).map(|_| (random() - 0.3) * (-30.0 * random()).exp2()).collect();
        for special in [&[][..], &[0.0, -0.0, 0.0, f64::MAX, f64::MAX], &[f64::NAN, f64::INFINITY]]
        {
            values.extend(special);
            for len in [1, 2, 7, 8, 9, 15, 2047, 2048, 2049, values.len()] {
                let tail = &values[values.len() - len..];
                let bits = |of: Moments| {
                    [of.min, of.max, of.mean, of.std, Some(of.squares)]
                        .map(|number| number.map(f64::to_bits))
                };
                let all = vectors::on_each_width(|| {
                    let of = moments(tail);
                    (bits(of), [of.finite, of.zeros, of.nan, of.infinite])
                });
                assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{len}: {all:x?}");
            }
        }
        // Zeros of both signs, at all places of a vector.
        for len in 1..40 {
            let zeros: Vec<f64> = (0..len).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
            let found = moments(&zeros);
            for number in [found.min, found.max, found.mean, found.std] {
                assert_eq!(number.map(f64::to_bits), Some(0), "{found:?}");
            }
        }
    }

    #[test]
    fn a_large_mean_leaves_a_small_deviation_exact() {
        let values: Vec<f64> = (0..100_000).map(|i| 1e9 + f64::from(i % 2)).collect();
        let of = moments(&values);
        assert!((of.std.unwrap() - 0.5).abs() < 1e-12, "{of:?}");
        assert_eq!(of.mean, Some(1e9 + 0.5));
    }

    #[test]
    fn huge_values_do_not_overflow_the_mean() {
        assert_eq!(moments(&[f64::MAX, f64::MAX]).mean, Some(f64::MAX));
        let apart = moments(&[[f64::MAX; 5000], [f64::MIN; 5000]].concat());
        assert!(apart.mean.unwrap().abs() < 1e296 && apart.std == Some(f64::INFINITY), "{apart:?}");
    }
}
