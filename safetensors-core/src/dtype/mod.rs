//! [`Dtype`]: the 22 element types of the format, from one table.

mod format;

use core::fmt;

pub(crate) use format::{Format, Special};

/// Declares [`Dtype`] and everything that is a plain lookup in its table.
///
/// `$d` is a dollar sign, for the macros that this one declares.
macro_rules! dtypes {
    (($d:tt) $(
        $(#[$doc:meta])*
        $variant:ident = $name:literal, $bits:literal bits, $align:literal aligned
        $(, float($exponent:literal, $mantissa:literal, $bias:literal, $special:ident))?
        $(, integer $integer:ty)?;
    )*) => {
        /// The type of a tensor's elements.
        ///
        /// The names are those of the safetensors format. Bit widths are those of one *element*;
        /// for the sub-byte types several elements share a byte (see [`Dtype::bits`]).
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
        #[allow(non_camel_case_types, reason = "the variants are spelled as the format spells them")]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// Every dtype of the format, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in a file's header, for example `"F8_E4M3"`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The width of one element in bits: 4, 6, 8, 16, 32 or 64.
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The alignment in bytes that a typed borrow of the data needs: 1, 2, 4 or 8.
            pub const fn alignment(self) -> usize {
                match self { $(Self::$variant => $align,)* }
            }

            /// How floating-point elements are coded; `None` for other elements.
            pub(crate) const fn format(self) -> Option<Format> {
                match self {
                    $($(Self::$variant => {
                        Some(Format::new($exponent, $mantissa, $bias, Special::$special))
                    })?)*
                    _ => None,
                }
            }

            /// Whether the elements are integers; BOOL's are not.
            pub(crate) const fn is_integer(self) -> bool {
                match self {
                    $($(Self::$variant => <$integer>::BITS == $bits,)?)*
                    _ => false,
                }
            }

            /// The dtype with this header name, spelled exactly.
            pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
                $(const $variant: &[u8] = $name.as_bytes();)*
                match name {
                    $($variant => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        // The columns agree.
        $($(const _: () = assert!(
            Format::new($exponent, $mantissa, $bias, Special::$special).bits() == $bits
        );)?)*
        $($(const _: () = assert!(<$integer>::BITS == $bits);)?)*

        /// Runs an expression in which a name stands for the [`Format`] of a dtype: a constant, so
        /// that the code is compiled for each format. Runs another expression for dtypes that are
        /// not floating-point.
        macro_rules! with_float {
            ($d dtype:expr, $d FORMAT:ident => $d body:expr, else $d other:expr) => {
                match $d dtype {
                    $($($crate::dtype::Dtype::$variant => {
                        const $d FORMAT: $crate::dtype::Format = $crate::dtype::Format::new(
                            $exponent,
                            $mantissa,
                            $bias,
                            $crate::dtype::Special::$special,
                        );
                        $d body
                    })?)*
                    _ => $d other,
                }
            };
        }

        /// Runs an expression in which a name stands for the Rust type of an integer dtype. Runs
        /// another expression for other dtypes, BOOL among them.
        macro_rules! with_integer {
            ($d dtype:expr, $d Int:ident => $d body:expr, else $d other:expr) => {
                match $d dtype {
                    $($($crate::dtype::Dtype::$variant => {
                        type $d Int = $integer;
                        $d body
                    })?)*
                    _ => $d other,
                }
            };
        }
    };
}

// One row a dtype: what the format calls it, the width of an element, the alignment of a typed
// borrow. Then, for numbers, how they are coded:
// - `float(exponent bits, mantissa bits, bias, which codes are not numbers)`,
// - `integer` and the Rust type.
// Decoding, encoding and widening follow from that, and so do `is_float` and `can_convert`.
dtypes! {
    ($)
    /// Boolean, one byte: 0 or 1.
    BOOL = "BOOL", 8 bits, 1 aligned;
    /// 4-bit float, E2M1 (the element of MXFP4 and NVFP4), two in a byte.
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
    /// 8-bit float, 4 exponent and 3 mantissa bits, finite with NaN (OCP FP8, the `FN` variant).
    F8_E4M3 = "F8_E4M3", 8 bits, 1 aligned, float(4, 3, 7, AllOnesNan);
    /// 8-bit power of two, exponent only (the scale of the MX formats).
    F8_E8M0 = "F8_E8M0", 8 bits, 1 aligned, float(8, 0, 127, Scale);
    /// `F8_E4M3` with bias 8, without negative zero: the one NaN is 0x80.
    F8_E4M3FNUZ = "F8_E4M3FNUZ", 8 bits, 1 aligned, float(4, 3, 8, NegativeZeroNan);
    /// `F8_E5M2` with bias 16, without infinities and negative zero: the one NaN is 0x80.
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
    /// Complex number of two `F32`: real part, then imaginary part.
    C64 = "C64", 64 bits, 4 aligned;
    /// IEEE double precision.
    F64 = "F64", 64 bits, 8 aligned, float(11, 52, 1023, Ieee);
    /// Signed 64-bit integer.
    I64 = "I64", 64 bits, 8 aligned, integer i64;
    /// Unsigned 64-bit integer.
    U64 = "U64", 64 bits, 8 aligned, integer u64;
}

impl Dtype {
    /// Whether elements are smaller than a byte, so that a byte holds parts of several.
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Whether the elements are real floating-point numbers, of any width.
    pub const fn is_float(self) -> bool {
        self.format().is_some()
    }
}

#[allow(
    clippy::single_component_path_imports,
    reason = "gives macros of the table to other rooms"
)]
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
    fn the_table_is_that_of_the_format() {
        assert_eq!(Dtype::ALL.len(), 22);
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
