//! The floating-point formats of 8 bits and fewer, decoded exactly.

use crate::Dtype;

/// How a small format spends its codes.
#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

/// Which codes are not finite numbers.
#[derive(Clone, Copy)]
enum Special {
    /// None: every code is a number.
    None,
    /// As IEEE 754: the highest exponent is infinity (mantissa 0) or NaN.
    Ieee,
    /// All ones below the sign are NaN; there is no infinity.
    AllOnesNan,
    /// The code of negative zero is the one NaN.
    NegativeZeroNan,
}

impl Format {
    const fn of(dtype: Dtype) -> Option<Self> {
        let (exponent_bits, mantissa_bits, bias, special) = match dtype {
            Dtype::F4 => (2, 1, 1, Special::None),
            Dtype::F6_E2M3 => (2, 3, 1, Special::None),
            Dtype::F6_E3M2 => (3, 2, 3, Special::None),
            Dtype::F8_E4M3 => (4, 3, 7, Special::AllOnesNan),
            Dtype::F8_E5M2 => (5, 2, 15, Special::Ieee),
            Dtype::F8_E4M3FNUZ => (4, 3, 8, Special::NegativeZeroNan),
            Dtype::F8_E5M2FNUZ => (5, 2, 16, Special::NegativeZeroNan),
            _ => return None,
        };
        Some(Self { exponent_bits, mantissa_bits, bias, special })
    }

    fn decode(self, code: u8) -> f32 {
        let code = u32::from(code);
        let sign = code >> (self.exponent_bits + self.mantissa_bits) & 1;
        let exponent = code >> self.mantissa_bits & ((1 << self.exponent_bits) - 1);
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        let top = exponent == (1 << self.exponent_bits) - 1;
        let all_ones = top && mantissa == (1 << self.mantissa_bits) - 1;
        let negative_zero = sign == 1 && exponent == 0 && mantissa == 0;
        let magnitude = match self.special {
            Special::Ieee if top && mantissa == 0 => f32::INFINITY,
            Special::Ieee if top => f32::NAN,
            Special::AllOnesNan if all_ones => f32::NAN,
            Special::NegativeZeroNan if negative_zero => return f32::NAN,
            _ => {
                // A subnormal has the exponent of the smallest normal and no hidden bit.
                let hidden = u32::from(exponent != 0) << self.mantissa_bits;
                let power = exponent.max(1) as i32 - self.bias - self.mantissa_bits as i32;
                (hidden | mantissa) as f32 * power_of_two(power)
            }
        };
        if sign == 1 { -magnitude } else { magnitude }
    }
}

/// `2^power` for the normal range of `f32`.
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(((power + 127) as u32) << 23)
}

/// The values of all codes of a small float dtype, the code being the index; `None` for other dtypes.
///
/// F8_E8M0 is not here: its values need the range of `f32`, see [`decode_e8m0`].
pub(super) fn decode_table(dtype: Dtype) -> Option<[f32; 256]> {
    let format = Format::of(dtype)?;
    Some(core::array::from_fn(|code| format.decode(code as u8)))
}

/// The value of an F8_E8M0 code: a power of two from `2^-127` to `2^127`, or NaN.
pub(super) fn decode_e8m0(code: u8) -> f32 {
    match code {
        0xff => f32::NAN,
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Calls `each` with every code of packed data, in element order: the lowest bits of the first byte come first.
pub(super) fn unpack(dtype: Dtype, bytes: &[u8], mut each: impl FnMut(u8)) {
    match dtype.bits() {
        4 => bytes.iter().for_each(|&byte| {
            each(byte & 0xf);
            each(byte >> 4);
        }),
        6 => bytes.chunks_exact(3).for_each(|group| {
            let bits = u32::from(group[0]) | u32::from(group[1]) << 8 | u32::from(group[2]) << 16;
            (0..4).for_each(|i| each((bits >> (6 * i) & 0x3f) as u8));
        }),
        _ => bytes.iter().for_each(|&byte| each(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use microfloat::{f4e2m1fn, f6e2m3fn, f6e3m2fn, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu};

    fn same(ours: f32, oracle: f32) -> bool {
        ours.to_bits() == oracle.to_bits() || ours.is_nan() && oracle.is_nan()
    }

    #[test]
    fn every_code_of_every_small_format_agrees_with_the_oracle() {
        macro_rules! check {
            ($dtype:ident, $oracle:ty, $codes:expr) => {
                let table = decode_table(Dtype::$dtype).unwrap();
                for code in 0..=$codes {
                    let (ours, oracle) = (table[usize::from(code)], <$oracle>::from_bits(code).to_f32());
                    assert!(same(ours, oracle), "{} {code:#04x}: {ours} and {oracle}", Dtype::$dtype);
                }
            };
        }
        check!(F4, f4e2m1fn, 0x0f_u8);
        check!(F6_E2M3, f6e2m3fn, 0x3f_u8);
        check!(F6_E3M2, f6e3m2fn, 0x3f_u8);
        check!(F8_E4M3, f8e4m3fn, 0xff_u8);
        check!(F8_E5M2, f8e5m2, 0xff_u8);
        check!(F8_E4M3FNUZ, f8e4m3fnuz, 0xff_u8);
        check!(F8_E5M2FNUZ, f8e5m2fnuz, 0xff_u8);
        for code in 0..=0xff_u8 {
            assert!(same(decode_e8m0(code), f8e8m0fnu::from_bits(code).to_f32()), "{code:#04x}");
        }
    }

    #[test]
    fn packed_codes_come_lowest_bits_first() {
        let mut codes = alloc::vec::Vec::new();
        unpack(Dtype::F4, &[0x21, 0x43], |code| codes.push(code));
        unpack(Dtype::F6_E2M3, &[0x81, 0x30, 0x10], |code| codes.push(code));
        assert_eq!(codes, [1, 2, 3, 4, 1, 2, 3, 4]);
    }
}
