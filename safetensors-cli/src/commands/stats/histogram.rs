//! [`Histogram`]: counts of values by range, gathered piece by piece.

/// The number of values in each of several bins of equal width, from the smallest value to the
/// largest.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Histogram {
    min: f64,
    max: f64,
    counts: Vec<u64>,
}

impl Histogram {
    /// An empty histogram for finite values from `min` to `max`.
    pub(crate) fn new(min: f64, max: f64, bins: usize) -> Self {
        Self { min, max, counts: vec![0; bins] }
    }

    /// Counts values. Skips those that are not finite.
    pub(crate) fn add(&mut self, values: &[f64]) {
        let last = self.counts.len().saturating_sub(1);
        // Halved, because the distance between two finite numbers may overflow.
        let (start, width) = (self.min / 2.0, self.max / 2.0 - self.min / 2.0);
        let scale = self.counts.len() as f64;
        for value in values.iter().filter(|value| value.is_finite()) {
            // If all values are equal, the width is 0, and the cast turns NaN into the first bin.
            let bin = ((value / 2.0 - start) / width * scale) as usize;
            if let Some(count) = self.counts.get_mut(bin.min(last)) {
                *count += 1;
            }
        }
    }

    /// Adds the counts of another one with the same bins.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// The counts of the bins.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The counts as bars, one character each. A bin with few values still shows a bar. An empty
    /// bin is blank.
    pub(crate) fn bars(&self) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.counts.iter().copied().max().unwrap_or_default();
        let bar = |&count: &u64| match count {
            0 => ' ',
            _ => {
                BARS[((u128::from(count) * 8).div_ceil(u128::from(most)) as usize).clamp(1, 8) - 1]
            }
        };
        self.counts.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_together_is_as_if_it_had_been_one() {
        let values: Vec<f64> =
            (0..20_000).map(|i| f64::from(i % 100)).chain([f64::NAN, f64::INFINITY]).collect();
        let histogram = |values: &[f64]| {
            let mut histogram = Histogram::new(0.0, 99.0, 10);
            histogram.add(values);
            histogram
        };
        let mut merged = histogram(&values[..7]);
        merged.merge(&histogram(&values[7..]));
        assert_eq!(merged.counts, [2000; 10]);
        assert_eq!(merged.counts, histogram(&values).counts);
    }

    #[test]
    fn the_widest_range_does_not_overflow() {
        let mut histogram = Histogram::new(f64::MIN, f64::MAX, 4);
        histogram.add(&[f64::MIN, 0.0, f64::MAX, f64::NAN]);
        assert_eq!(histogram.counts, [1, 0, 1, 1]);
    }

    #[test]
    fn bars() {
        let mut histogram = Histogram::new(0.0, 4.0, 4);
        histogram.add(&[0.0, 0.5, 0.9, 0.1, 0.2, 0.3, 0.4, 0.6, 1.0, 3.0, 3.5, 4.0, 3.9]);
        assert_eq!(histogram.bars(), "█▁ ▄");
        let mut one = Histogram::new(7.0, 7.0, 3);
        one.add(&[7.0, 7.0]);
        assert_eq!(one.bars(), "█  ");
    }
}
