//! [`Dtype`]: the 22 element types of the format, from one table.

use core::fmt;

/// Declares [`Dtype`] and everything that is a plain lookup in its table.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $bits:literal bits, $align:literal aligned;)*) => {
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

            /// The dtype with this header name, spelled exactly.
            pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
                $(const $variant: &[u8] = $name.as_bytes();)*
                match name {
                    $($variant => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

dtypes! {
    /// Boolean, one byte: 0 or 1.
    BOOL = "BOOL", 8 bits, 1 aligned;
    /// 4-bit float, E2M1 (the element of MXFP4 and NVFP4), two in a byte.
    F4 = "F4", 4 bits, 1 aligned;
    /// 6-bit float, 2 exponent and 3 mantissa bits, four in three bytes.
    F6_E2M3 = "F6_E2M3", 6 bits, 1 aligned;
    /// 6-bit float, 3 exponent and 2 mantissa bits, four in three bytes.
    F6_E3M2 = "F6_E3M2", 6 bits, 1 aligned;
    /// Unsigned byte.
    U8 = "U8", 8 bits, 1 aligned;
    /// Signed byte.
    I8 = "I8", 8 bits, 1 aligned;
    /// 8-bit float, 5 exponent and 2 mantissa bits, with infinities (OCP FP8).
    F8_E5M2 = "F8_E5M2", 8 bits, 1 aligned;
    /// 8-bit float, 4 exponent and 3 mantissa bits, finite with NaN (OCP FP8, the `FN` variant).
    F8_E4M3 = "F8_E4M3", 8 bits, 1 aligned;
    /// 8-bit power of two, exponent only (the scale of the MX formats).
    F8_E8M0 = "F8_E8M0", 8 bits, 1 aligned;
    /// `F8_E4M3` with bias 8, without negative zero: the one NaN is 0x80.
    F8_E4M3FNUZ = "F8_E4M3FNUZ", 8 bits, 1 aligned;
    /// `F8_E5M2` with bias 16, without infinities and negative zero: the one NaN is 0x80.
    F8_E5M2FNUZ = "F8_E5M2FNUZ", 8 bits, 1 aligned;
    /// Signed 16-bit integer.
    I16 = "I16", 16 bits, 2 aligned;
    /// Unsigned 16-bit integer.
    U16 = "U16", 16 bits, 2 aligned;
    /// IEEE half precision.
    F16 = "F16", 16 bits, 2 aligned;
    /// bfloat16: the upper half of an `F32`.
    BF16 = "BF16", 16 bits, 2 aligned;
    /// Signed 32-bit integer.
    I32 = "I32", 32 bits, 4 aligned;
    /// Unsigned 32-bit integer.
    U32 = "U32", 32 bits, 4 aligned;
    /// IEEE single precision.
    F32 = "F32", 32 bits, 4 aligned;
    /// Complex number of two `F32`: real part, then imaginary part.
    C64 = "C64", 64 bits, 4 aligned;
    /// IEEE double precision.
    F64 = "F64", 64 bits, 8 aligned;
    /// Signed 64-bit integer.
    I64 = "I64", 64 bits, 8 aligned;
    /// Unsigned 64-bit integer.
    U64 = "U64", 64 bits, 8 aligned;
}

impl Dtype {
    /// Whether elements are smaller than a byte, so that a byte holds parts of several.
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Whether the elements are real floating-point numbers, of any width.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F4
                | Self::F6_E2M3
                | Self::F6_E3M2
                | Self::F8_E5M2
                | Self::F8_E4M3
                | Self::F8_E8M0
                | Self::F8_E4M3FNUZ
                | Self::F8_E5M2FNUZ
                | Self::F16
                | Self::BF16
                | Self::F32
                | Self::F64
        )
    }
}

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
