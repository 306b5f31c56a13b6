//! [`Moments`]: statistics of a set of numbers, gathered piece by piece.

/// The number of values that are summed at a time. They stay in the nearest cache between the
/// passes over them.
const BLOCK: usize = 2048;

/// The number of partial sums. They can be vectorised, and lose fewer digits than a single sum.
const LANES: usize = 8;

/// Count, extremes, mean and deviation. NaN and infinities are counted, and left out of the rest.
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
    /// The sum of the squares of the distances from the mean.
    #[serde(skip)]
    squares: f64,
}

/// What one pass over a block finds, in several lanes.
#[derive(Clone, Copy)]
struct Pass {
    sum: [f64; LANES],
    min: [f64; LANES],
    max: [f64; LANES],
    zeros: [u64; LANES],
    /// NaN and infinity times zero are NaN, so this stays 0 only if all values are finite.
    finite: [f64; LANES],
}

impl Moments {
    /// Adds values.
    pub(crate) fn add(&mut self, values: &[f64]) {
        for block in values.chunks(BLOCK) {
            match Self::of_finite(block) {
                Some(moments) => self.merge(&moments),
                None => self.add_some_finite(block),
            }
        }
    }

    /// Adds a block that has NaN or infinity.
    fn add_some_finite(&mut self, block: &[f64]) {
        let (mut finite, mut len) = ([0.0; BLOCK], 0);
        for &value in block {
            if value.is_finite() {
                finite[len] = value;
                len += 1;
            }
        }
        let nan = block.iter().filter(|value| value.is_nan()).count() as u64;
        self.nan += nan;
        self.infinite += (block.len() - len) as u64 - nan;
        self.merge(&Self::of_finite(&finite[..len]).unwrap_or_default());
    }

    /// The moments of one block, or `None` if it has NaN or infinity or is empty.
    fn of_finite(block: &[f64]) -> Option<Self> {
        let n = block.len() as f64;
        let pass = pulp::Arch::new().dispatch(|| Pass::over(block));
        if block.is_empty() || pass.finite.iter().sum::<f64>() != 0.0 {
            return None;
        }
        let min = pass.min.into_iter().reduce(f64::min)?;
        let max = pass.max.into_iter().reduce(f64::max)?;
        let mean = match pass.sum.iter().sum::<f64>() {
            total if total.is_finite() => total / n,
            // The total overflows. The rounded parts may add up to more than the largest value.
            _ => block.iter().map(|value| value / n).sum::<f64>().clamp(min, max),
        };
        Some(
            Self {
                finite: block.len() as u64,
                zeros: pass.zeros.iter().sum(),
                min: Some(min),
                max: Some(max),
                mean: Some(mean),
                squares: pulp::Arch::new().dispatch(|| squares(block, mean)),
                ..Self::default()
            }
            .with_std(),
        )
    }

    /// The moments of values that each occur several times. They are finite.
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
            min: values.clone().map(|(value, _)| value).reduce(f64::min),
            max: values.clone().map(|(value, _)| value).reduce(f64::max),
            mean: Some(mean),
            squares: sum(&|value| (value - mean) * (value - mean)),
            ..Self::default()
        }
        .with_std()
    }

    /// Merges the moments of two sets by the formula of Chan, Golub and LeVeque.
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

impl Pass {
    /// Inlined, so that it is compiled for the vector instructions of this machine.
    #[inline(always)]
    fn over(block: &[f64]) -> Self {
        let mut pass = Self {
            sum: [0.0; LANES],
            min: [f64::INFINITY; LANES],
            max: [f64::NEG_INFINITY; LANES],
            zeros: [0; LANES],
            finite: [0.0; LANES],
        };
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &value) in chunk.iter().enumerate() {
                pass.take(lane, value);
            }
        }
        for (lane, &value) in rest.iter().enumerate() {
            pass.take(lane, value);
        }
        pass
    }

    #[inline(always)]
    fn take(&mut self, lane: usize, value: f64) {
        self.sum[lane] += value;
        // These comparisons are one vector instruction each; `f64::min` is several.
        self.min[lane] = if value < self.min[lane] { value } else { self.min[lane] };
        self.max[lane] = if value > self.max[lane] { value } else { self.max[lane] };
        self.zeros[lane] += u64::from(value == 0.0);
        self.finite[lane] += value * 0.0;
    }
}

/// The sum of the squares of the distances from the mean.
#[inline(always)]
fn squares(block: &[f64], mean: f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += (value - mean) * (value - mean);
        }
    }
    let rest = rest.iter().map(|&value| (value - mean) * (value - mean));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
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
    fn what_is_put_together_is_as_if_it_had_been_one() {
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
