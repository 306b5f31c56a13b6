//! Parses dtypes from their names.

use core::str::FromStr;

use super::{Error, ErrorKind};
use crate::format::dtype::Dtype;

impl FromStr for Dtype {
    type Err = Error;

    /// Parses a name exactly as the format spells it, in upper case.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownDtype`] for any other text.
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::from_name(name.as_bytes())
            .ok_or_else(|| ErrorKind::UnknownDtype { found: name.into() }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        for &dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), dtype);
        }
        for name in ["", "bf16", "BF16 ", "F8_E4M3FN", "f32", "C128"] {
            let error = name.parse::<Dtype>().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::UnknownDtype { found } if found == name),
                "{error}"
            );
        }
    }
}
