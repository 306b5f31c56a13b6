//! [`Distribution`]: the finite values of a tensor, as ascending ranges with counts.

use super::codes;
use super::moments::Moments;

/// The ends are equal if the value is known exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
    /// The number of values up to the end of this range.
    end: u64,
}

impl Range {
    pub(super) fn middle(&self) -> f64 {
        // Halved first, because the sum of two finite numbers may overflow.
        if self.low == self.high { self.low } else { self.low / 2.0 + self.high / 2.0 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Distribution {
    ranges: Vec<Range>,
}

impl Distribution {
    /// Reorders the values.
    pub(super) fn of_values(values: &mut Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_unstable_by(f64::total_cmp);
        Self::of_sorted(values.iter().map(|&value| (value, value, 1)))
    }

    /// `values` has the value of each code, of elements counted by their bits.
    pub(super) fn of_bits(
        counts: impl Iterator<Item = (u32, u64)>,
        values: &[f64],
    ) -> (Self, Moments) {
        let (mut nan, mut infinite, mut finite) = (0, 0, Vec::new());
        for (code, count) in counts {
            match values.get(code as usize) {
                Some(value) if value.is_finite() => finite.push((*value, count)),
                Some(value) if value.is_infinite() => infinite += count,
                _ => nan += count,
            }
        }
        // Not the unstable sort: it would not gain from the few runs that are sorted already.
        finite.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut moments = Moments::of_counted(finite.iter().copied());
        (moments.nan, moments.infinite) = (nan, infinite);
        (Self::of_sorted(finite.into_iter().map(|(value, count)| (value, value, count))), moments)
    }

    /// Takes numbers counted by ranges, and their `moments`.
    pub(super) fn of_ranges(
        counts: impl Iterator<Item = (u32, u64)>,
        integers: bool,
        moments: &Moments,
    ) -> Self {
        let Some((min, max)) = moments.min.zip(moments.max) else { return Self::default() };
        let finite = |(code, count)| {
            let (low, high) = codes::range(code, integers)?;
            Some((low.clamp(min, max), high.clamp(min, max), count))
        };
        let mut ranges: Vec<_> = counts.filter_map(finite).collect();
        ranges.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        Self::of_sorted(ranges.into_iter())
    }

    fn of_sorted(ranges: impl Iterator<Item = (f64, f64, u64)>) -> Self {
        let mut end = 0;
        let count = |(low, high, count)| {
            end += count;
            // Without the sign of zero, which would show in JSON.
            Range { low: low + 0.0, high: high + 0.0, end }
        };
        Self { ranges: ranges.map(count).collect() }
    }

    pub(super) fn len(&self) -> u64 {
        self.ranges.last().map_or(0, |last| last.end)
    }

    /// Returns the ranges in ascending order, with the number of values in each.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (&Range, u64)> {
        let mut before = 0;
        self.ranges.iter().map(move |range| {
            let count = range.end - before;
            before = range.end;
            (range, count)
        })
    }

    pub(super) fn extremes(&self, low: f64, high: f64) -> Option<(f64, f64)> {
        let first = self.ranges.partition_point(|range| range.middle() < low);
        let end = self.ranges.partition_point(|range| range.middle() <= high);
        let within = self.ranges.get(first..end)?;
        Some((within.first()?.low, within.last()?.high))
    }

    /// Returns a percentile as NumPy computes it by default: in proportion between the two nearest
    /// values.
    pub(super) fn percentile(&self, percent: f64) -> Option<f64> {
        let last = self.len().checked_sub(1)?;
        let position = (percent / 100.0 * last as f64).min(last as f64);
        let below = (position.floor() as u64).min(last);
        let (a, b) = (self.at(below)?, self.at((below + 1).min(last))?);
        let share = position - position.floor();
        Some(match b - a {
            // Also where both are known to be the same, so that nothing is rounded.
            0.0 => a,
            distance if distance.is_finite() => a + distance * share,
            _ => a * (1.0 - share) + b * share,
        })
    }

    fn at(&self, index: u64) -> Option<f64> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.end <= index))?;
        // The extremes are known exactly.
        Some(match index {
            0 => range.low,
            _ if index + 1 == self.len() => range.high,
            _ => range.middle(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::counts::Counts;
    use super::*;

    fn by_ranges(numbers: &[f64], integers: bool) -> Distribution {
        let (mut counts, mut moments) = (Counts::<u32>::default(), Moments::default());
        moments.add(numbers);
        codes::count_ranges(numbers, None, &mut counts);
        Distribution::of_ranges(counts.iter(), integers, &moments)
    }

    fn expected(numbers: &[f64], percent: f64) -> f64 {
        let mut sorted: Vec<_> = numbers.iter().copied().filter(|n| n.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let position = percent / 100.0 * (sorted.len() - 1) as f64;
        let (a, b) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
        a + (b - a) * position.fract()
    }

    const PERCENTS: [f64; 9] = [0.0, 0.1, 1.0, 25.0, 50.0, 75.0, 99.0, 99.9, 100.0];

    #[test]
    fn percentiles_equal_those_of_numpy() {
        // numpy.percentile([3, 1, 2, 10], [0, 25, 50, 90, 100])
        let all = Distribution::of_values(&mut vec![3.0, f64::NAN, 1.0, f64::INFINITY, 2.0, 10.0]);
        let found = [0.0, 25.0, 50.0, 90.0, 100.0].map(|p| all.percentile(p).unwrap());
        for (found, expected) in found.into_iter().zip([1.0, 1.75, 2.5, 7.9, 10.0]) {
            assert!((found - expected).abs() < 1e-14, "{found} instead of {expected}");
        }
        assert_eq!(Distribution::of_values(&mut vec![f64::NAN]).percentile(50.0), None);
        assert_eq!(Distribution::of_values(&mut vec![-0.0]).percentile(50.0).unwrap().to_bits(), 0);
        let far = Distribution::of_values(&mut vec![f64::MIN, f64::MAX]);
        assert_eq!(far.percentile(50.0), Some(0.0));
    }

    #[test]
    fn percentiles_of_ranges_are_as_near_as_the_ranges_are_narrow() {
        // A skewed distribution over many powers of two, of both signs.
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let numbers: Vec<_> =
            (0..50_000).map(|_| (random() - 0.3) * (-20.0 * random()).exp2()).collect();
        let found = by_ranges(&numbers, false);
        assert_eq!(found.len(), 50_000);
        for percent in PERCENTS {
            let (found, expected) =
                (found.percentile(percent).unwrap(), expected(&numbers, percent));
            assert!(
                (found - expected).abs() <= expected.abs() / 2048.0,
                "{percent} %: {found} instead of {expected}"
            );
        }
        assert_eq!(found.percentile(0.0), numbers.iter().copied().reduce(f64::min));
        assert_eq!(found.percentile(100.0), numbers.iter().copied().reduce(f64::max));
    }

    #[test]
    fn small_integers_are_exact() {
        let numbers: Vec<_> = (0..5000).map(|i| f64::from(i % 2048) - 1000.0).collect();
        let found = by_ranges(&numbers, true);
        for percent in PERCENTS {
            assert_eq!(found.percentile(percent).unwrap(), expected(&numbers, percent));
        }
    }

    #[test]
    fn values_counted_by_their_bits_are_exact() {
        let values = codes::values(safetensors_core::Dtype::F16).unwrap();
        let halves: Vec<u16> = (0..60_000).map(|i: u32| (i * 7919 % 65_536) as u16).collect();
        let bytes = halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<_>>();
        let mut counts = Counts::default();
        codes::count_bits(safetensors_core::Dtype::F16, &bytes, &mut counts);
        let (found, moments) = Distribution::of_bits(counts.iter(), &values);
        let numbers: Vec<_> = halves.iter().map(|&half| values[usize::from(half)]).collect();
        for percent in PERCENTS {
            assert_eq!(found.percentile(percent).unwrap(), expected(&numbers, percent));
        }
        let mut one_by_one = Moments::default();
        one_by_one.add(&numbers);
        let counted = |of: &Moments| (of.finite, of.zeros, of.nan, of.infinite, of.min, of.max);
        assert_eq!(counted(&moments), counted(&one_by_one));
        let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() / b.unwrap() - 1.0).abs() < 1e-9;
        assert!(near(moments.std, one_by_one.std), "{moments:?}");
    }
}
