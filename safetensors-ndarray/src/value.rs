//! [`MetadataValue`]: numbers and texts as values of metadata.

use std::borrow::Cow;

/// A value of an attribute or of a metadata entry: a text, a number or a `bool`. The file has it as
/// text, and `parse` reads a number back with the same bits:
///
/// | type | text |
/// |---|---|
/// | `bool` | `true` or `false` |
/// | integers | digits, without leading zeros: `-7` |
/// | `f32`, `f64` | the shortest decimal that reads as the same bits: `0.1`, `-0.0`, `1e-8`, `inf` |
/// | NaN | `NaN` |
///
/// A NaN of unusual bits is hexadecimal, such as `0x7ff8000000000001`, which a struct of arrays
/// reads, and `parse` does not.
pub trait MetadataValue {
    /// Returns the text in the file.
    #[doc(hidden)]
    fn to_text(&self) -> String;
}

impl<T: MetadataValue + ?Sized> MetadataValue for &T {
    fn to_text(&self) -> String {
        (**self).to_text()
    }
}

macro_rules! shown {
    ($($type:ty)*) => {$(
        impl MetadataValue for $type {
            fn to_text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $digits:literal;)*) => {$(
        impl MetadataValue for $type {
            fn to_text(&self) -> String {
                // No decimal keeps the bits of a NaN.
                if self.is_nan() && self.to_bits() != Self::NAN.to_bits() {
                    return format!("{:#0width$x}", self.to_bits(), width = 2 + $digits);
                }
                format!("{self:?}")
            }
        }
    )*};
}

shown! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize bool str String Cow<'_, str> }
floats! { f32, 8; f64, 16; }
