//! Fields that are numbers and texts: entries in the metadata.

use safetensors_core::{Error, ErrorKind, Result};

use super::{Checking, InOption, InVec, LoadField, Loading, Names, SaveField, Saving};
use crate::MetadataValue;

trait Scalar: MetadataValue + Sized {
    /// The expected form, for errors.
    const FORM: &'static str;

    fn from_text(text: &str) -> Option<Self>;
}

macro_rules! scalar_fields {
    ($($type:ty)*) => {$(
        impl SaveField for $type {
            fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()> {
                file.entry(name, self)
            }
        }

        impl<'r> LoadField<'r> for $type {
            fn is_in(name: &str, names: &Names<'r>) -> bool {
                names.entry(name).is_some()
            }

            fn check(_: Option<&Self>, name: &str, file: &mut Checking<'r>) {
                file.entry(name, Self::FORM, |text| Self::from_text(text).is_some());
            }

            fn load(name: &str, file: &mut Loading<'r>) -> Result<Self> {
                file.names().entry(name).and_then(Self::from_text).ok_or_else(|| missing(name))
            }
        }

        impl InOption for $type {}
    )*};
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Scalar for $type {
            const FORM: &'static str = concat!("an integer that fits ", stringify!($type));

            fn from_text(text: &str) -> Option<Self> {
                let value = text.parse::<Self>().ok()?;
                // Refuses other spellings of a number, such as "+1" and "01".
                (value.to_string() == text).then_some(value)
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $bits:ty, $digits:literal;)*) => {$(
        impl Scalar for $type {
            const FORM: &'static str = concat!(
                "a decimal number that fits ", stringify!($type),
                ", or the bits of a NaN as 0x and ", $digits, " hex digits"
            );

            fn from_text(text: &str) -> Option<Self> {
                if let Some(digits) = text.strip_prefix("0x") {
                    let value = Self::from_bits(<$bits>::from_str_radix(digits, 16).ok()?);
                    return (digits.len() == $digits && value.is_nan()).then_some(value);
                }
                let value = text.parse::<Self>().ok()?;
                // "1e999" reads as infinity, but does not mean it.
                let is_overflow = value.is_infinite() && text.bytes().any(|b| b.is_ascii_digit());
                (!is_overflow).then_some(value)
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize }
floats! { f32, u32, 8; f64, u64, 16; }

impl Scalar for bool {
    const FORM: &'static str = "true or false";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Scalar for String {
    const FORM: &'static str = TEXT;

    fn from_text(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

scalar_fields! {
    i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool String
}

const TEXT: &str = "a text";

impl InVec for String {}

impl SaveField for &str {
    fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()> {
        file.entry(name, *self)
    }
}

impl<'r: 'a, 'a> LoadField<'r> for &'a str {
    fn is_in(name: &str, names: &Names<'r>) -> bool {
        names.entry(name).is_some()
    }

    fn check(_: Option<&Self>, name: &str, file: &mut Checking<'r>) {
        file.entry(name, TEXT, |_| true);
    }

    fn load(name: &str, file: &mut Loading<'r>) -> Result<Self> {
        file.names().entry(name).ok_or_else(|| missing(name))
    }
}

impl InVec for &str {}

impl InOption for &str {}

/// Returns the error for an entry that is gone after `check`, by a fault of this crate.
fn missing(name: &str) -> Error {
    Error::from(ErrorKind::TensorNotFound).in_tensor(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_float_comes_back() {
        let edges = [0.0, -0.0, 0.1, 1e-8, 5e-324, f64::MAX, f64::INFINITY, f64::NAN, -f64::NAN];
        let random = (0..10_000_u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for value in edges.into_iter().chain(random).chain([f64::from_bits(0x7ff0_0000_0000_0001)])
        {
            for value in [value, -value] {
                let text = value.to_text();
                assert_eq!(f64::from_text(&text).unwrap().to_bits(), value.to_bits(), "{text}");
            }
            let value = f32::from_bits(value.to_bits() as u32);
            let text = value.to_text();
            assert_eq!(f32::from_text(&text).map(f32::to_bits), Some(value.to_bits()), "{text}");
        }
        assert_eq!((f64::NAN.to_text(), f32::NAN.to_text()), ("NaN".into(), "NaN".into()));
        assert_eq!(f64::from_bits(0x7ff8_0000_0000_0001).to_text(), "0x7ff8000000000001");
        assert_eq!(f32::from_bits(0xffc0_0000).to_text(), "0xffc00000");
    }

    #[test]
    fn malformed_numbers_are_refused() {
        let malformed = ["", " 1", "1 ", "0x", "0x3ff0000000000000", "0x7fc00000", "1,5", "1e999"];
        for text in malformed.into_iter().chain(["-1e999", "0x+ff8000000000000", "nul"]) {
            assert_eq!(f64::from_text(text), None, "{text:?}");
        }
        assert_eq!((f64::from_text("1e300"), f32::from_text("1e300")), (Some(1e300), None));
        assert_eq!(["-inf", "0.10"].map(f64::from_text), [Some(-f64::INFINITY), Some(0.1)]);
        assert!(f64::from_text("NaN").is_some_and(f64::is_nan));
        for text in ["", "-1", "+1", "01", "1.0", "1e3", "256", "0x10", "1_0", "٣"] {
            assert_eq!(u8::from_text(text), None, "{text:?}");
        }
        assert_eq!(["0", "255"].map(u8::from_text), [Some(0), Some(255)]);
        assert_eq!(["-128", "-0"].map(i8::from_text), [Some(-128), None]);
        assert_eq!(i128::from_text(&i128::MIN.to_string()), Some(i128::MIN));
        for text in ["", "True", "1", "true "] {
            assert_eq!(bool::from_text(text), None, "{text:?}");
        }
    }
}
