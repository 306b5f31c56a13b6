//! Shows numbers of bytes in messages.

use std::fmt;

/// Such as `1.5 GB`, with decimal units.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TB", 1_000_000_000_000_u64), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        match units.into_iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_bytes_has_the_largest_unit_that_fits() {
        assert_eq!(Bytes(999_999).to_string(), "999999 bytes");
        assert_eq!(Bytes(1_500_000_000).to_string(), "1.5 GB");
    }
}
