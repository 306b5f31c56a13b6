//! [`QuantizationError`]: the error of quantised weights.

/// The difference between a quantised weight and its original numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct QuantizationError {
    /// The largest difference.
    pub max: f64,
    /// The root mean square of the differences.
    pub rms: f64,
    /// The relative L2 error; 0 if the weight is zero.
    pub relative: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    count: u64,
    max: f32,
    sums: [f64; 2],
}

impl Measured {
    pub(super) fn add(&mut self, numbers: &[f32], decoded: &[f32]) {
        // Several numbers are added at once.
        const LANES: usize = 8;
        self.count += numbers.len() as u64;
        let mut lanes = [([0.0_f64; 2], 0.0_f32); LANES];
        for (numbers, decoded) in numbers.chunks(LANES).zip(decoded.chunks(LANES)) {
            for ((number, decoded), (sums, max)) in numbers.iter().zip(decoded).zip(&mut lanes) {
                let difference = (number - decoded).abs();
                *max = max.max(difference);
                sums[0] += f64::from(difference) * f64::from(difference);
                sums[1] += f64::from(*number) * f64::from(*number);
            }
        }
        for (sums, max) in lanes {
            self.max = self.max.max(max);
            self.sums[0] += sums[0];
            self.sums[1] += sums[1];
        }
    }

    pub(super) fn error(&self) -> QuantizationError {
        let [differences, numbers] = self.sums;
        let root = |of: f64, by: f64| if by > 0.0 { (of / by).sqrt() } else { 0.0 };
        QuantizationError {
            max: self.max.into(),
            rms: root(differences, self.count as f64),
            relative: root(differences, numbers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_measured_over_all_pieces() {
        let mut measured = Measured::default();
        assert_eq!(measured.error(), QuantizationError::default());
        let numbers: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let moved = |it: &f32| it + if *it == 57.0 { 3.0 } else { -1.0 };
        let decoded: Vec<f32> = numbers.iter().map(moved).collect();
        measured.add(&numbers[..61], &decoded[..61]);
        measured.add(&numbers[61..], &decoded[61..]);
        let expected = QuantizationError {
            max: 3.0,
            rms: (108.0_f64 / 100.0).sqrt(),
            relative: (108.0_f64 / 328_350.0).sqrt(),
        };
        assert_eq!(measured.error(), expected);
    }
}
