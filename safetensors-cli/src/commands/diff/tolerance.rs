//! [`Tolerance`]: how far apart two values may be and still count as equal.

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
    ///
    /// With --tolerance, either is enough
    #[arg(
        long = "relative-tolerance",
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = amount
    )]
    relative: Option<f64>,
}

impl Tolerance {
    /// Returns `true` if values are equal only if their bits are equal.
    pub(super) fn is_none(self) -> bool {
        self.absolute.is_none() && self.relative.is_none()
    }

    /// Returns the largest distances that are allowed, as they are and as a part of the larger
    /// value. Below 0 where none is.
    pub(super) fn limits(self) -> (f64, f64) {
        (self.absolute.unwrap_or(-1.0), self.relative.unwrap_or(-1.0))
    }

    /// A tolerance of both kinds.
    #[cfg(test)]
    pub(super) fn new(absolute: f64, relative: f64) -> Self {
        Self { absolute: Some(absolute), relative: Some(relative) }
    }
}

fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // An infinite tolerance would make NaN equal to a number, and infinity to a finite one.
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a finite number of 0 or more".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tolerance_makes_nan_equal_to_a_number() {
        for wrong in ["inf", "1e999", "-1", "NaN"] {
            assert!(amount(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Tolerance::new(1.0, 0.5).limits(), (1.0, 0.5));
        assert!(Tolerance::default().is_none() && !Tolerance::new(0.0, 0.0).is_none());
    }
}
