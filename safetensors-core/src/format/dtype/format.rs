//! [`Format`]: the bits of a floating-point element.

/// A sign, an exponent and a mantissa, from the highest bit to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    pub(crate) bias: u32,
    pub(crate) special: Special,
}

/// The codes that are not finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    None,
    /// With the highest exponent, infinity if the mantissa is 0, else NaN.
    Ieee,
    /// Only ones below the sign are NaN. No infinity.
    AllOnesNan,
    /// The only NaN. No infinity.
    NegativeZeroNan,
    /// Ones alone are NaN; others are the exponent of a power of two, biased like `f32`.
    Scale,
}

impl Special {
    const fn has_sign(self) -> bool {
        !matches!(self, Self::Scale)
    }

    const fn has_negative_zero(self) -> bool {
        matches!(self, Self::None | Self::Ieee | Self::AllOnesNan)
    }

    const fn has_infinity(self) -> bool {
        matches!(self, Self::Ieee)
    }

    const fn has_nan(self) -> bool {
        !matches!(self, Self::None)
    }
}

impl Format {
    pub(crate) const HALF: Self = Self::new(5, 10, 15, Special::Ieee);

    pub(crate) const fn new(
        exponent_bits: u32,
        mantissa_bits: u32,
        bias: u32,
        special: Special,
    ) -> Self {
        Self { exponent_bits, mantissa_bits, bias, special }
    }

    pub(crate) const fn bits(self) -> u32 {
        self.special.has_sign() as u32 + self.exponent_bits + self.mantissa_bits
    }

    pub(crate) const fn is_upper_part_of_f32(self) -> bool {
        self.exponent_bits == 8 && self.bias == 127 && matches!(self.special, Special::Ieee)
    }

    /// Elements of blocks, or their scales. No conversion makes them: both must be chosen together.
    pub(crate) const fn is_of_blocks(self) -> bool {
        self.bits() < 8 || matches!(self.special, Special::Scale)
    }

    /// Returns `true` if this format has each value of `other`, even signed zeros, infinities and
    /// NaN.
    pub(crate) fn holds(self, other: Self) -> bool {
        let special = self.special;
        let others = other.special;
        let (exponent, mantissa) = self.largest_parts();
        let (other_exponent, other_mantissa) = other.largest_parts();
        special.has_sign() >= others.has_sign()
            && special.has_negative_zero() >= others.has_negative_zero()
            && special.has_infinity() >= others.has_infinity()
            && special.has_nan() >= others.has_nan()
            && self.mantissa_bits >= other.mantissa_bits
            && self.smallest_exponent() <= other.smallest_exponent()
            && (exponent > other_exponent
                || exponent == other_exponent && mantissa >= other_mantissa)
    }

    fn smallest_exponent(self) -> i32 {
        // The number is subnormal, with the exponent of the smallest normal number. Scales have no
        // subnormals.
        let normal = if matches!(self.special, Special::Scale) { 0 } else { 1 };
        normal - self.bias as i32 - self.mantissa_bits as i32
    }

    pub(crate) const fn largest_code(self) -> u64 {
        let codes = 1 << (self.exponent_bits + self.mantissa_bits);
        match self.special {
            Special::None | Special::NegativeZeroNan => codes - 1,
            Special::AllOnesNan | Special::Scale => codes - 2,
            Special::Ieee => codes - (1 << self.mantissa_bits) - 1,
        }
    }

    /// Returns the exponent, and the mantissa at the top of 64 bits.
    fn largest_parts(self) -> (i32, u64) {
        let code = self.largest_code();
        let exponent = (code >> self.mantissa_bits) as i32 - self.bias as i32;
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        (exponent, if self.mantissa_bits == 0 { 0 } else { mantissa << (64 - self.mantissa_bits) })
    }
}

/// Methods for formats with values that all fit `f32`.
impl Format {
    /// The mantissa bits that only an `f32` has.
    pub(crate) const fn dropped_bits(self) -> u32 {
        f32::MANTISSA_DIGITS - 1 - self.mantissa_bits
    }

    const fn largest_bits(self) -> u32 {
        // The largest number is normal. So its code differs from the bits of the `f32` only in the
        // dropped bits and the bias.
        ((self.largest_code() as u32) << self.dropped_bits()) + ((127 - self.bias) << 23)
    }

    pub(crate) const fn largest(self) -> f32 {
        f32::from_bits(self.largest_bits())
    }

    /// Returns the next number, as if its code were one.
    pub(crate) const fn after_largest(self) -> f32 {
        f32::from_bits(self.largest_bits() + (1 << self.dropped_bits()))
    }

    /// Returns the smallest `f32` that is too large.
    // It is the tie between the largest number and the next one. If the largest code is even, the
    // tie rounds to it, and the `f32` above is the first.
    pub(crate) const fn first_overflow(self) -> f32 {
        let tie = self.largest_bits() + (1 << (self.dropped_bits() - 1));
        let largest_is_odd = self.largest_bits() >> self.dropped_bits() & 1;
        f32::from_bits(tie + 1 - largest_is_odd)
    }
}

/// Methods for formats of at most 8 bits.
impl Format {
    /// Returns the values by code. All are 0 for a wider format, for which this must compile.
    pub(crate) const fn values(self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut code = 0;
        while self.bits() <= 8 && code < 256 {
            values[code] = match self.special {
                Special::Scale => power_of_two(code as u32),
                _ => self.decode(code as u32),
            };
            code += 1;
        }
        values
    }
}

impl Format {
    /// Decodes at most 16 bits with fewer exponents than `f32`.
    // Without branches and tables, so that it compiles to vector instructions.
    #[inline(always)]
    pub(crate) const fn decode(self, code: u32) -> f32 {
        let sign_bit = 1 << (self.bits() - 1);
        let below_sign = code & (sign_bit - 1);
        // Shifted to the exponent and mantissa of an `f32`, the code has the right value except for
        // the difference of the biases. A subnormal is a small integer times a power of two.
        // Neither computes with a subnormal `f32`, which takes some processors a hundred times as
        // long.
        let normal = (below_sign << self.dropped_bits()).wrapping_add((127 - self.bias) << 23);
        let power = 128_u32.wrapping_sub(self.bias + self.mantissa_bits);
        let subnormal = below_sign as i32 as f32 * f32::from_bits(power << 23);
        let is_subnormal = below_sign >> self.mantissa_bits == 0;
        let magnitude = if is_subnormal { subnormal.to_bits() } else { normal };
        let value = magnitude | (code & sign_bit) << (32 - self.bits());
        let infinity = ((1 << self.exponent_bits) - 1) << self.mantissa_bits;
        // `HIGHEST` sets the exponent of infinity and NaN. The mantissa, which stays, decides which
        // of the two it is.
        const HIGHEST: u32 = 0x7f80_0000;
        f32::from_bits(match self.special {
            Special::AllOnesNan if below_sign == sign_bit - 1 => value | HIGHEST,
            Special::NegativeZeroNan if code == sign_bit => f32::NAN.to_bits(),
            Special::Ieee if below_sign >= infinity => value | HIGHEST,
            _ => value,
        })
    }
}

/// Decodes [`Special::Scale`].
const fn power_of_two(code: u32) -> f32 {
    match code {
        // Subnormal in `f32`.
        0 => f32::from_bits(1 << 22),
        0xff => f32::NAN,
        _ => f32::from_bits(code << 23),
    }
}

#[cfg(test)]
mod tests {
    use crate::format::dtype::Dtype;

    #[test]
    fn limits_are_the_largest_numbers_of_each_format() {
        let limits = [
            (Dtype::F4, 6.0, 8.0, 7.0),
            (Dtype::F8_E4M3, 448.0, 480.0, 464.0_f32.next_up()),
            (Dtype::F8_E5M2, 57344.0, 65536.0, 61440.0),
            (Dtype::F8_E4M3FNUZ, 240.0, 256.0, 248.0),
            (Dtype::F8_E5M2FNUZ, 57344.0, 65536.0, 61440.0),
            (Dtype::F16, 65504.0, 65536.0, 65520.0),
            (Dtype::BF16, half::bf16::MAX.to_f32(), f32::INFINITY, f32::from_bits(0x7f7f_8000)),
        ];
        for (dtype, largest, after, overflow) in limits {
            let format = dtype.format().unwrap();
            assert_eq!(
                (format.largest(), format.after_largest(), format.first_overflow()),
                (largest, after, overflow)
            );
        }
        assert_eq!(Dtype::F32.format().unwrap().largest(), f32::MAX);
    }

    fn values(dtype: Dtype) -> Vec<f32> {
        let codes = 0..1_u32 << dtype.bits();
        match dtype {
            Dtype::F16 => codes.map(|code| half::f16::from_bits(code as u16).to_f32()).collect(),
            Dtype::BF16 => codes.map(|code| f32::from_bits(code << 16)).collect(),
            _ => dtype.format().unwrap().values()[..codes.end as usize].to_vec(),
        }
    }

    #[test]
    fn a_format_holds_another_if_it_has_each_of_its_values() {
        let floats = || Dtype::ALL.iter().filter_map(|dtype| Some((*dtype, dtype.format()?)));
        let bits = |value: &f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
        for (wide, format) in floats().filter(|(wide, _)| wide.bits() <= 16) {
            let all: std::collections::HashSet<u32> = values(wide).iter().map(bits).collect();
            for (narrow, other) in floats().filter(|(narrow, _)| narrow.bits() <= 16) {
                let has_all = values(narrow).iter().all(|value| all.contains(&bits(value)));
                assert_eq!(format.holds(other), has_all, "{wide} holds {narrow}");
            }
            for wider in [Dtype::F32, Dtype::F64] {
                let wider = wider.format().unwrap();
                assert!(wider.holds(format) && !format.holds(wider), "{wide}");
            }
        }
        let [single, double] = [Dtype::F32, Dtype::F64].map(|dtype| dtype.format().unwrap());
        assert!(double.holds(single) && !single.holds(double));
    }
}
