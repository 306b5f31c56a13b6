//! [`Histogram`]: the number of values in bins of equal width.

use super::distribution::Distribution;

/// An outlier is further from the middle half of the values than this many times its width.
const FENCE: f64 = 3.0;

/// Outliers are in no bin.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Histogram {
    /// The smallest value that is no outlier.
    pub(super) min: f64,
    /// The largest value that is no outlier.
    pub(super) max: f64,
    pub(super) counts: Vec<u64>,
    /// Outliers below the bins.
    pub(super) below: u64,
    /// Outliers above the bins.
    pub(super) above: u64,
}

impl Histogram {
    pub(super) fn count(values: &Distribution, bins: usize) -> Option<Self> {
        let (min, max) = extent(values)?;
        let mut histogram = Self { min, max, counts: vec![0; bins], below: 0, above: 0 };
        if bins == 0 {
            return None;
        }
        for (range, count) in values.ranges() {
            match range.middle() {
                middle if middle < min => histogram.below += count,
                middle if middle > max => histogram.above += count,
                _ => histogram.add(range.low, range.high, count),
            }
        }
        Some(histogram)
    }

    /// Divides values between `low` and `high` in proportion.
    fn add(&mut self, low: f64, high: f64, count: u64) {
        let (start, end) = (self.place(low), self.place(high));
        let bins = self.counts.len();
        let (mut bin, mut taken) = ((start as usize).min(bins - 1), 0);
        while taken < count {
            let is_last = bin + 1 >= bins || (bin + 1) as f64 >= end;
            let share = ((bin + 1) as f64 - start) / (end - start);
            let until = if is_last { count } else { (count as f64 * share) as u64 };
            self.counts[bin] += until - taken;
            (bin, taken) = (bin + 1, until);
        }
    }

    /// Returns a value's place, from 0 to the number of bins.
    fn place(&self, value: f64) -> f64 {
        // Halved, because the distance between two finite numbers may overflow.
        let (start, width) = (self.min / 2.0, self.max / 2.0 - self.min / 2.0);
        // If all values are equal, the width is 0, and the place is NaN, which `max` turns into 0.
        let place = (value / 2.0 - start) / width * self.counts.len() as f64;
        place.max(0.0).min(self.counts.len() as f64)
    }

    /// Returns the counts as [`bars()`] of one row, with `<` and `>` for outliers. With `aligned`,
    /// a blank shows that there are none below.
    pub(super) fn bars(&self, aligned: bool) -> String {
        let bars = bars(&self.counts, self.counts.len(), 1).concat();
        let below = match self.below {
            0 if aligned => " ",
            0 => "",
            _ => "<",
        };
        let above = if self.above > 0 { ">" } else { "" };
        format!("{below}{bars}{above}")
    }
}

/// A bin with few values still shows a bar. Without values there are no rows.
pub(crate) fn bars(counts: &[u64], width: usize, height: usize) -> Vec<String> {
    const STEPS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    // Neighbours share a column where there is no room for all.
    let share = counts.len().div_ceil(width.max(1)).max(1);
    let sum = |bins: &[u64]| bins.iter().map(|&count| u128::from(count)).sum::<u128>();
    let columns: Vec<u128> = counts.chunks(share).map(sum).collect();
    let most = columns.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return Vec::new();
    }
    let steps = (height * 8) as u128;
    let heights: Vec<usize> =
        columns.iter().map(|&count| (count * steps).div_ceil(most) as usize).collect();
    let row =
        |row: usize| heights.iter().map(|&all| STEPS[all.saturating_sub(row * 8).min(8)]).collect();
    (0..height).rev().map(row).collect()
}

/// Returns the extremes without outliers.
// The middle half is between the percentiles 25 and 75. If half of the values are equal, its width
// may be 0: then the percentiles 1 and 99 replace it, and if they are equal, too, no value is an
// outlier.
fn extent(values: &Distribution) -> Option<(f64, f64)> {
    for (low, high) in [(25.0, 75.0), (1.0, 99.0)] {
        let (low, high) = (values.percentile(low)?, values.percentile(high)?);
        let reach = (high - low) * FENCE;
        if reach > 0.0 {
            return values.extremes(low - reach, high + reach);
        }
    }
    values.extremes(f64::NEG_INFINITY, f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[f64], bins: usize) -> Histogram {
        Histogram::count(&Distribution::of_values(&mut values.to_vec()), bins).unwrap()
    }

    #[test]
    fn the_widest_range_does_not_overflow() {
        let all = histogram(&[f64::MIN, 0.0, f64::MAX, f64::NAN], 4);
        assert_eq!((all.counts, all.below, all.above), (vec![1, 0, 1, 1], 0, 0));
    }

    #[test]
    fn bars_fill_their_rows() {
        assert_eq!(bars(&[16, 8, 0, 1], 4, 2), ["█   ", "██ ▁"]);
        assert_eq!(bars(&[1, 1, 1, 0], 2, 1), ["█▄"]);
        assert_eq!(bars(&[u64::MAX, u64::MAX], 1, 1), ["█"]);
        assert!(bars(&[0, 0], 4, 2).is_empty() && bars(&[], 0, 2).is_empty());
    }

    #[test]
    fn outliers_are_shown_next_to_bars() {
        let values = [0.0, 0.5, 0.9, 0.1, 0.2, 0.3, 0.4, 0.6, 1.0, 3.0, 3.5, 4.0, 3.9];
        assert_eq!(histogram(&values, 4).bars(false), "█▁ ▄");
        assert_eq!(histogram(&[7.0, 7.0], 3).bars(true), " █  ");
        assert!(Histogram::count(&Distribution::of_values(&mut vec![f64::NAN]), 3).is_none());
        assert!(Histogram::count(&Distribution::of_values(&mut vec![1.0]), 0).is_none());
    }

    #[test]
    fn outliers_do_not_flatten_the_rest() {
        let mut values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(histogram(&values, 10).counts, [10; 10]);
        values.extend([-1e30, 1e6, 1e300, 1e301]);
        let all = histogram(&values, 10);
        assert_eq!((all.min, all.max, all.below, all.above), (0.0, 99.0, 1, 3));
        assert_eq!(all.counts, [10; 10]);
        // Values that are far away, but not alone there, are no outliers.
        values.extend([1e6; 200]);
        assert_eq!((histogram(&values, 10).below, histogram(&values, 10).above), (1, 2));
    }

    #[test]
    fn where_most_values_are_the_same_the_others_are_still_seen() {
        let mut values = vec![0.0; 80];
        values.extend((0..20).map(f64::from));
        values.push(1e9);
        let all = histogram(&values, 20);
        assert_eq!((all.max, all.above, all.counts[0], all.counts[1]), (19.0, 1, 81, 1));
        let all = histogram(&[[0.0; 999].as_slice(), &[5.0]].concat(), 5);
        assert_eq!((all.max, all.counts), (5.0, vec![999, 0, 0, 0, 1]));
    }

    #[test]
    fn values_known_as_a_range_are_divided_among_its_bins() {
        let mut all = Histogram { min: 0.0, max: 10.0, counts: vec![0; 10], below: 0, above: 0 };
        all.add(0.5, 4.5, 8);
        all.add(2.0, 3.0, 5);
        all.add(9.5, 10.0, 3);
        all.add(10.0, 10.0, 1);
        assert_eq!(all.counts, [1, 2, 7, 2, 1, 0, 0, 0, 0, 4]);
    }
}
