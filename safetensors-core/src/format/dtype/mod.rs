//! [`Dtype`]: the element types, from one table.

mod format;

use core::fmt;

pub(crate) use format::{Format, Special};

/// Declares [`Dtype`], methods for the columns of the table, and macros that run code for a row.
/// These need `$d`, a dollar sign.
macro_rules! dtypes {
    (($d:tt) $(
        $(#[$doc:meta])*
        $variant:ident = $name:literal, $bits:literal bits, $align:literal aligned
        $(, float($exponent:literal, $mantissa:literal, $bias:literal, $special:ident))?
        $(, integer $integer:ty)?;
    )*) => {
        /// The type of a tensor's elements, named as in the format.
        ///
        /// Several elements of a sub-byte dtype share a byte. The order is the one of
        /// [`ALL`](Self::ALL), from narrow to wide.
        ///
        /// ```
        /// use safetensors_core::Dtype;
        ///
        /// let dtype: Dtype = "BF16".parse()?;
        /// assert_eq!(dtype, Dtype::BF16);
        /// assert_eq!(dtype.bits(), 16);
        /// assert_eq!(dtype.to_string(), "BF16");
        /// # Ok::<(), safetensors_core::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the format spells its names like this")]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// Every dtype, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name in a header, such as `"F8_E4M3"`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the width of an element in bits: 4, 6, 8, 16, 32 or 64. Both numbers of C64
            /// count.
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// Returns the alignment in bytes of a typed borrow: 1, 2, 4 or 8.
            pub const fn alignment(self) -> usize {
                match self { $(Self::$variant => $align,)* }
            }

            pub(crate) const fn format(self) -> Option<Format> {
                match self {
                    $($(Self::$variant => {
                        Some(Format::new($exponent, $mantissa, $bias, Special::$special))
                    })?)*
                    _ => None,
                }
            }

            /// Returns `false` for BOOL.
            pub(crate) const fn is_integer(self) -> bool {
                match self {
                    $($(Self::$variant => <$integer>::BITS == $bits,)?)*
                    _ => false,
                }
            }

            /// The name must be as in a header.
            pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
                $(const $variant: &[u8] = $name.as_bytes();)*
                match name {
                    $($variant => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        // The widths in the columns of a row agree.
        $($(const _: () = assert!(
            Format::new($exponent, $mantissa, $bias, Special::$special).bits() == $bits
        );)?)*
        $($(const _: () = assert!(<$integer>::BITS == $bits);)?)*

        /// Runs `body` for the constant `FORMAT`, or `other` if the dtype is no float.
        macro_rules! with_float {
            ($d dtype:expr, $d FORMAT:ident => $d body:expr, else $d other:expr) => {
                match $d dtype {
                    $($($crate::format::dtype::Dtype::$variant => {
                        const $d FORMAT: $crate::format::dtype::Format = $crate::format::dtype::Format::new(
                            $exponent,
                            $mantissa,
                            $bias,
                            $crate::format::dtype::Special::$special,
                        );
                        $d body
                    })?)*
                    _ => $d other,
                }
            };
        }

        /// Runs `body` with the Rust type `Int`, or `other` if the dtype is no integer.
        macro_rules! with_integer {
            ($d dtype:expr, $d Int:ident => $d body:expr, else $d other:expr) => {
                match $d dtype {
                    $($($crate::format::dtype::Dtype::$variant => {
                        type $d Int = $integer;
                        $d body
                    })?)*
                    _ => $d other,
                }
            };
        }
    };
}

// One row for each dtype: its name in the format, the width of an element, and the alignment of a
// typed borrow in bytes. Real numbers have one more column:
// - `float(exponent bits, mantissa bits, bias, which codes are not finite numbers)`,
// - `integer` and the Rust type.
// That column decides decoding, encoding, widening, `is_float` and `can_convert`. Functions for
// each pair of dtypes would be many, and each could round wrongly.
//
// The rows are in the order of the reference implementation, which also orders the data in a file:
// a saved file has the last dtypes first.
dtypes! {
    ($)
    /// Boolean, a byte: 0 or 1.
    BOOL = "BOOL", 8 bits, 1 aligned;
    /// 4-bit float, E2M1 (MXFP4 and NVFP4), two in a byte.
    F4 = "F4", 4 bits, 1 aligned, float(2, 1, 1, None);
    /// 6-bit float, 2 exponent and 3 mantissa bits, four in three bytes.
    F6_E2M3 = "F6_E2M3", 6 bits, 1 aligned, float(2, 3, 1, None);
    /// 6-bit float, 3 exponent and 2 mantissa bits, four in three bytes.
    F6_E3M2 = "F6_E3M2", 6 bits, 1 aligned, float(3, 2, 3, None);
    /// Unsigned byte.
    U8 = "U8", 8 bits, 1 aligned, integer u8;
    /// Signed byte.
    I8 = "I8", 8 bits, 1 aligned, integer i8;
    /// 8-bit float, 5 exponent and 2 mantissa bits, with infinities (OCP FP8).
    F8_E5M2 = "F8_E5M2", 8 bits, 1 aligned, float(5, 2, 15, Ieee);
    /// 8-bit float, 4 exponent and 3 mantissa bits, NaN but no infinity (OCP FP8, `FN`).
    F8_E4M3 = "F8_E4M3", 8 bits, 1 aligned, float(4, 3, 7, AllOnesNan);
    /// 8-bit power of two, exponent only (scales of the MX formats).
    F8_E8M0 = "F8_E8M0", 8 bits, 1 aligned, float(8, 0, 127, Scale);
    /// `F8_E4M3` with bias 8, without negative zero: only 0x80 is NaN.
    F8_E4M3FNUZ = "F8_E4M3FNUZ", 8 bits, 1 aligned, float(4, 3, 8, NegativeZeroNan);
    /// `F8_E5M2` with bias 16, without infinities and negative zero: only 0x80 is NaN.
    F8_E5M2FNUZ = "F8_E5M2FNUZ", 8 bits, 1 aligned, float(5, 2, 16, NegativeZeroNan);
    /// Signed 16-bit integer.
    I16 = "I16", 16 bits, 2 aligned, integer i16;
    /// Unsigned 16-bit integer.
    U16 = "U16", 16 bits, 2 aligned, integer u16;
    /// IEEE half precision.
    F16 = "F16", 16 bits, 2 aligned, float(5, 10, 15, Ieee);
    /// bfloat16: the upper half of an `F32`.
    BF16 = "BF16", 16 bits, 2 aligned, float(8, 7, 127, Ieee);
    /// Signed 32-bit integer.
    I32 = "I32", 32 bits, 4 aligned, integer i32;
    /// Unsigned 32-bit integer.
    U32 = "U32", 32 bits, 4 aligned, integer u32;
    /// IEEE single precision.
    F32 = "F32", 32 bits, 4 aligned, float(8, 23, 127, Ieee);
    /// Complex number: real part, then imaginary part, as `F32`.
    C64 = "C64", 64 bits, 4 aligned;
    /// IEEE double precision.
    F64 = "F64", 64 bits, 8 aligned, float(11, 52, 1023, Ieee);
    /// Signed 64-bit integer.
    I64 = "I64", 64 bits, 8 aligned, integer i64;
    /// Unsigned 64-bit integer.
    U64 = "U64", 64 bits, 8 aligned, integer u64;
}

impl Dtype {
    /// Returns `true` if elements are smaller than a byte.
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Returns `true` for real floating-point numbers: not for C64.
    pub const fn is_float(self) -> bool {
        self.format().is_some()
    }
}

#[allow(clippy::single_component_path_imports, reason = "exports the macros to other modules")]
pub(crate) use {with_float, with_integer};

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dtype_has_its_name_and_an_alignment() {
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name().as_bytes()), Some(dtype));
            assert!(dtype.alignment().is_power_of_two());
            assert!(
                dtype.is_sub_byte()
                    || (dtype.bits() as usize).is_multiple_of(8 * dtype.alignment())
            );
        }
    }
}
