//! The floating-point formats of 16 bits and fewer: their parameters, and exact decoding of those
//! of a byte and less.

use super::vectorized;
use crate::dtype::Dtype;

/// How a format spends its codes.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) exponent_bits: u32,
    pub(super) mantissa_bits: u32,
    pub(super) bias: u32,
    pub(super) special: Special,
}

/// Which codes are not finite numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    /// None: every code is a number.
    None,
    /// As IEEE 754: the highest exponent is infinity (mantissa 0) or NaN.
    Ieee,
    /// All ones below the sign are NaN; there is no infinity.
    AllOnesNan,
    /// The code of negative zero is the one NaN.
    NegativeZeroNan,
}

pub(super) const F4: Format = Format::new(2, 1, 1, Special::None);
pub(super) const F6_E2M3: Format = Format::new(2, 3, 1, Special::None);
pub(super) const F6_E3M2: Format = Format::new(3, 2, 3, Special::None);
pub(super) const F8_E4M3: Format = Format::new(4, 3, 7, Special::AllOnesNan);
pub(super) const F8_E5M2: Format = Format::new(5, 2, 15, Special::Ieee);
pub(super) const F8_E4M3FNUZ: Format = Format::new(4, 3, 8, Special::NegativeZeroNan);
pub(super) const F8_E5M2FNUZ: Format = Format::new(5, 2, 16, Special::NegativeZeroNan);
pub(super) const F16: Format = Format::new(5, 10, 15, Special::Ieee);
pub(super) const BF16: Format = Format::new(8, 7, 127, Special::Ieee);

impl Format {
    const fn new(exponent_bits: u32, mantissa_bits: u32, bias: u32, special: Special) -> Self {
        Self { exponent_bits, mantissa_bits, bias, special }
    }

    /// The low bits of an `f32` that a normal number of this format has no room for.
    pub(super) const fn dropped_bits(self) -> u32 {
        f32::MANTISSA_DIGITS - 1 - self.mantissa_bits
    }

    /// The largest finite number, as the bits of an `f32`.
    const fn largest_bits(self) -> u32 {
        let codes = 1 << (self.exponent_bits + self.mantissa_bits);
        let largest = match self.special {
            Special::None | Special::NegativeZeroNan => codes - 1,
            Special::AllOnesNan => codes - 2,
            Special::Ieee => codes - (1 << self.mantissa_bits) - 1,
        };
        // The largest number is normal: its code is that of the `f32` without the dropped bits, but
        // for the bias.
        (largest << self.dropped_bits()) + ((127 - self.bias) << 23)
    }

    /// The largest finite number.
    pub(super) const fn largest(self) -> f32 {
        f32::from_bits(self.largest_bits())
    }

    /// The number that would follow the largest one.
    pub(super) const fn after_largest(self) -> f32 {
        f32::from_bits(self.largest_bits() + (1 << self.dropped_bits()))
    }

    /// The smallest `f32` that is too large for this format: half-way after the largest number, or
    /// just above that where the tie goes to the largest number because its code is even.
    pub(super) const fn first_overflow(self) -> f32 {
        let tie = self.largest_bits() + (1 << (self.dropped_bits() - 1));
        let largest_is_odd = self.largest_bits() >> self.dropped_bits() & 1;
        f32::from_bits(tie + 1 - largest_is_odd)
    }

    /// The values of all codes, the code being the index. For formats of 8 bits and fewer.
    const fn values(self) -> [f32; 256] {
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            values[code] = self.decode(code as u8);
            code += 1;
        }
        values
    }

    const fn decode(self, code: u8) -> f32 {
        let code = code as u32;
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
                let hidden = if exponent == 0 { 0 } else { 1 << self.mantissa_bits };
                let unbiased = if exponent == 0 { 1 } else { exponent };
                let power = 127 + unbiased - self.bias - self.mantissa_bits;
                (hidden | mantissa) as f32 * f32::from_bits(power << 23)
            }
        };
        if sign == 1 { -magnitude } else { magnitude }
    }
}

/// The values of all codes of a dtype of 8 bits and fewer, the code being the index; `None` for
/// other dtypes.
pub(super) fn decode_table(dtype: Dtype) -> Option<&'static [f32; 256]> {
    static F4_VALUES: [f32; 256] = F4.values();
    static F6_E2M3_VALUES: [f32; 256] = F6_E2M3.values();
    static F6_E3M2_VALUES: [f32; 256] = F6_E3M2.values();
    static F8_E4M3_VALUES: [f32; 256] = F8_E4M3.values();
    static F8_E5M2_VALUES: [f32; 256] = F8_E5M2.values();
    static F8_E4M3FNUZ_VALUES: [f32; 256] = F8_E4M3FNUZ.values();
    static F8_E5M2FNUZ_VALUES: [f32; 256] = F8_E5M2FNUZ.values();
    static F8_E8M0_VALUES: [f32; 256] = powers_of_two();
    match dtype {
        Dtype::F4 => Some(&F4_VALUES),
        Dtype::F6_E2M3 => Some(&F6_E2M3_VALUES),
        Dtype::F6_E3M2 => Some(&F6_E3M2_VALUES),
        Dtype::F8_E4M3 => Some(&F8_E4M3_VALUES),
        Dtype::F8_E5M2 => Some(&F8_E5M2_VALUES),
        Dtype::F8_E4M3FNUZ => Some(&F8_E4M3FNUZ_VALUES),
        Dtype::F8_E5M2FNUZ => Some(&F8_E5M2FNUZ_VALUES),
        Dtype::F8_E8M0 => Some(&F8_E8M0_VALUES),
        _ => None,
    }
}

/// The values of F8_E8M0: from `2^-127` to `2^127`, then NaN.
const fn powers_of_two() -> [f32; 256] {
    let mut values = [f32::NAN; 256];
    // 2^-127 is subnormal in f32.
    values[0] = f32::from_bits(1 << 22);
    let mut code = 1;
    while code < 255 {
        values[code] = f32::from_bits((code as u32) << 23);
        code += 1;
    }
    values
}

/// Decodes `bytes` into `values`, which has room for exactly their elements. Packed elements come
/// lowest bits first.
pub(super) fn decode(dtype: Dtype, table: &[f32; 256], bytes: &[u8], values: &mut [f32]) {
    match dtype.bits() {
        4 => {
            for (&byte, pair) in bytes.iter().zip(values.as_chunks_mut::<2>().0) {
                *pair = [table[usize::from(byte & 0xf)], table[usize::from(byte >> 4)]];
            }
        }
        6 => {
            for (&[a, b, c], four) in
                bytes.as_chunks::<3>().0.iter().zip(values.as_chunks_mut::<4>().0)
            {
                let codes = u32::from_le_bytes([a, b, c, 0]);
                *four = [0, 6, 12, 18].map(|shift| table[(codes >> shift & 0x3f) as usize]);
            }
        }
        // Each call has a constant format, for which the loop is compiled.
        _ => match dtype {
            Dtype::F8_E4M3 => decode_all(bytes, values, |byte| decode_byte(F8_E4M3, byte)),
            Dtype::F8_E5M2 => decode_all(bytes, values, |byte| decode_byte(F8_E5M2, byte)),
            Dtype::F8_E4M3FNUZ => decode_all(bytes, values, |byte| decode_byte(F8_E4M3FNUZ, byte)),
            Dtype::F8_E5M2FNUZ => decode_all(bytes, values, |byte| decode_byte(F8_E5M2FNUZ, byte)),
            _ => decode_all(bytes, values, |byte| table[usize::from(byte)]),
        },
    }
}

#[inline(always)]
fn decode_all(bytes: &[u8], values: &mut [f32], decode: impl Fn(u8) -> f32) {
    vectorized(|| {
        for (&byte, value) in bytes.iter().zip(values) {
            *value = decode(byte);
        }
    });
}

/// The value of a code of 8 bits. Free of branches and tables, so that the loop around it becomes
/// vector code.
#[inline(always)]
fn decode_byte(format: Format, byte: u8) -> f32 {
    let code = u32::from(byte & 0x7f);
    // In the place of a number's exponent and mantissa the code is the value, but for the
    // difference of the biases; a subnormal code is a subnormal number there.
    let scale = f32::from_bits((254 - format.bias) << 23);
    let magnitude = f32::from_bits(code << (23 - format.mantissa_bits)) * scale;
    let value = magnitude.to_bits() | u32::from(byte & 0x80) << 24;
    let infinity = ((1 << format.exponent_bits) - 1) << format.mantissa_bits;
    // With the highest exponent what remains of the mantissa says whether it is infinity or NaN.
    const HIGHEST: u32 = 0x7f80_0000;
    f32::from_bits(match format.special {
        Special::AllOnesNan if code == 0x7f => value | HIGHEST,
        Special::NegativeZeroNan if byte == 0x80 => f32::NAN.to_bits(),
        Special::Ieee if code >= infinity => value | HIGHEST,
        _ => value,
    })
}

#[cfg(test)]
mod tests {
    use microfloat::{
        f4e2m1fn, f6e2m3fn, f6e3m2fn, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu,
    };

    use super::*;

    fn same(ours: f32, oracle: f32) -> bool {
        ours.to_bits() == oracle.to_bits() || ours.is_nan() && oracle.is_nan()
    }

    #[test]
    fn every_code_of_every_small_format_agrees_with_the_oracle() {
        macro_rules! check {
            ($dtype:ident, $oracle:ty, $codes:expr) => {
                let table = decode_table(Dtype::$dtype).unwrap();
                let mut decoded = [0.0; 256];
                if Dtype::$dtype.bits() == 8 {
                    let codes: [u8; 256] = core::array::from_fn(|code| code as u8);
                    decode(Dtype::$dtype, table, &codes, &mut decoded);
                    assert!(
                        decoded.iter().zip(table).all(|(&a, &b)| same(a, b)),
                        "{}",
                        Dtype::$dtype
                    );
                }
                for code in 0..=$codes {
                    let (ours, oracle) =
                        (table[usize::from(code)], <$oracle>::from_bits(code).to_f32());
                    assert!(
                        same(ours, oracle),
                        "{} {code:#04x}: {ours} and {oracle}",
                        Dtype::$dtype
                    );
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
        check!(F8_E8M0, f8e8m0fnu, 0xff_u8);
    }

    #[test]
    fn packed_codes_come_lowest_bits_first() {
        let codes: [f32; 256] = core::array::from_fn(|code| code as f32);
        let mut values = [0.0; 4];
        decode(Dtype::F4, &codes, &[0x21, 0x43], &mut values);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
        decode(Dtype::F6_E2M3, &codes, &[0x81, 0x30, 0x10], &mut values);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn the_limits_are_those_of_the_formats() {
        let limits = [
            (F4, 6.0, 8.0, 7.0),
            (F8_E4M3, 448.0, 480.0, 464.0_f32.next_up()),
            (F8_E5M2, 57344.0, 65536.0, 61440.0),
            (F8_E4M3FNUZ, 240.0, 256.0, 248.0),
            (F8_E5M2FNUZ, 57344.0, 65536.0, 61440.0),
            (F16, 65504.0, 65536.0, 65520.0),
            (BF16, half::bf16::MAX.to_f32(), f32::INFINITY, f32::from_bits(0x7f7f_8000)),
        ];
        for (format, largest, after, overflow) in limits {
            assert_eq!(
                (format.largest(), format.after_largest(), format.first_overflow()),
                (largest, after, overflow)
            );
        }
    }
}
