//! Decodes elements to `f32`.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::block::{Failure, aligned, vectorized};
use super::double::round_to_odd;
use super::integer;
use crate::format::dtype::{Dtype, Format, Special, with_float};

/// Decodes exactly. F64 and integers are rounded to odd, so that a later rounding is right.
pub(super) fn decode(
    from: Dtype,
    src: &[u8],
    out: &mut [f32],
    scratch: &mut [u64],
) -> Result<(), Failure> {
    // The format is a constant. So for each format only one of these loops is compiled.
    with_float!(from, FORMAT => {
        match FORMAT.bits() {
            64 => {
                for (&value, out) in aligned::<f64>(src, scratch).iter().zip(out) {
                    *out = round_to_odd(value);
                }
            }
            32 => bytemuck::cast_slice_mut(out).copy_from_slice(src),
            _ if FORMAT == Format::HALF => {
                aligned::<f16>(src, scratch).convert_to_f32_slice(out);
            }
            16 if FORMAT.is_upper_part_of_f32() => {
                for (&bits, out) in aligned::<u16>(src, scratch).iter().zip(out) {
                    *out = f32::from_bits(u32::from(bits) << 16);
                }
            }
            16 => decode_all(aligned::<u16>(src, scratch), out, |code| {
                FORMAT.decode(u32::from(code))
            }),
            8 if FORMAT.special == Special::Scale => {
                let values = const { &FORMAT.values() };
                decode_all(src, out, |code| values[usize::from(code)]);
            }
            8 => decode_all(src, out, |code| FORMAT.decode(u32::from(code))),
            6 => decode_sixes(const { &FORMAT.values() }, src, out),
            _ => decode_fours(const { &FORMAT.values() }, src, out),
        }
        Ok(())
    }, else integer::to_odd_f32(from, src, out, scratch))
}

/// Returns `false` for other dtypes.
pub(crate) fn decode_bytes(from: Dtype, src: &[u8], out: &mut [f32]) -> bool {
    from.bits() == 8 && from.is_float() && decode(from, src, out, &mut []).is_ok()
}

#[inline(always)]
pub(crate) fn decode_four(code: u32) -> f32 {
    with_float!(Dtype::F4, FORMAT => FORMAT.decode(code), else f32::NAN)
}

/// Decodes the lowest bits first.
fn decode_fours(values: &[f32; 256], src: &[u8], out: &mut [f32]) {
    for (&byte, pair) in src.iter().zip(out.as_chunks_mut::<2>().0) {
        *pair = [values[usize::from(byte & 0xf)], values[usize::from(byte >> 4)]];
    }
}

/// Decodes the lowest bits first.
fn decode_sixes(values: &[f32; 256], src: &[u8], out: &mut [f32]) {
    for (&[a, b, c], four) in src.as_chunks::<3>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        let codes = u32::from_le_bytes([a, b, c, 0]);
        *four = [0, 6, 12, 18].map(|shift| values[(codes >> shift & 0x3f) as usize]);
    }
}

#[inline(always)]
fn decode_all<T: Copy>(codes: &[T], out: &mut [f32], decode: impl Fn(T) -> f32) {
    vectorized(|| {
        for (&code, out) in codes.iter().zip(out) {
            *out = decode(code);
        }
    });
}

#[cfg(test)]
mod tests {
    use microfloat::{
        f4e2m1fn, f6e2m3fn, f6e3m2fn, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu,
    };

    use super::*;
    use crate::format::convert::block::elements_of;
    use crate::format::convert::encode::{encode, encode_code};
    use crate::format::convert::{Overflow, can_convert};
    use crate::format::tensor::swap_on_big_endian;

    fn decoded(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; elements_of(dtype, bytes.len())];
        let done = decode(dtype, bytes, &mut values, &mut vec![0; bytes.len()]);
        assert!(done.is_ok(), "{dtype}");
        values
    }

    fn same(ours: f32, oracle: f32) -> bool {
        ours.to_bits() == oracle.to_bits() || ours.is_nan() && oracle.is_nan()
    }

    #[test]
    fn every_code_of_every_small_format_agrees_with_the_oracle() {
        macro_rules! check {
            ($dtype:ident, $oracle:ty, $codes:expr) => {
                let table = Dtype::$dtype.format().unwrap().values();
                if Dtype::$dtype.bits() == 8 {
                    let decoded = decoded(Dtype::$dtype, &Vec::from_iter(0..=0xff_u8));
                    assert!(
                        decoded.iter().zip(table).all(|(&a, b)| same(a, b)),
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
        decode_fours(&codes, &[0x21, 0x43], &mut values);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
        decode_sixes(&codes, &[0x81, 0x30, 0x10], &mut values);
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(decoded(Dtype::F4, &[0x21, 0xf7]), [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(decoded(Dtype::F6_E2M3, &[0x81, 0x30, 0x10]), [0.125, 0.25, 0.375, 0.5]);
    }

    #[test]
    fn a_format_of_16_bits_needs_no_special_instructions() {
        for code in 0..=u16::MAX {
            let value = f16::from_bits(code).to_f32();
            let ours = Format::HALF.decode(u32::from(code));
            assert!(same(ours, value), "{code:#06x}: {ours} and {value}");
            let back = encode_code(Format::HALF, value);
            assert!(back == u32::from(code) || value.is_nan(), "{value}: {back:#06x}");
        }
    }

    #[test]
    fn every_format_of_the_table_is_decoded_and_encoded() {
        for &dtype in Dtype::ALL {
            let Some(format) = dtype.format() else {
                let failed = encode(dtype, Overflow::Ieee, &[0.0], &mut [0; 8]).is_err();
                assert!(failed && !dtype.is_float(), "{dtype}");
                continue;
            };
            assert!(dtype.is_float() && dtype.bits() == format.bits(), "{dtype}");
            // Zero, one and the largest number have different bits in all formats.
            let one = u64::from(format.bias) << format.mantissa_bits;
            let codes = [0, one, format.largest_code(), one];
            let bit = |i: u32| codes[(i / dtype.bits()) as usize] >> (i % dtype.bits()) & 1;
            let byte = |i: u32| (0..8).map(|at| (bit(8 * i + at) as u8) << at).sum::<u8>();
            let mut bytes: Vec<u8> = (0..dtype.bits() * 4 / 8).map(byte).collect();
            swap_on_big_endian(dtype, &mut bytes);
            let values = decoded(dtype, &bytes);
            let zero = if format.special == Special::Scale { 2_f32.powi(-127) } else { 0.0 };
            assert_eq!((values[0], values[1], values[3]), (zero, 1.0, 1.0), "{dtype}");
            assert!(values[2] >= 1.5 && values[2].is_finite(), "{dtype} {}", values[2]);

            let mut out = [0_u64; 4];
            let out = &mut bytemuck::cast_slice_mut(&mut out)[..bytes.len()];
            let encoded = encode(dtype, Overflow::Error, &values, out).is_ok();
            // `encode` does not encode F32 and F64.
            assert_eq!(encoded, !format.is_of_blocks() && dtype.bits() <= 16, "{dtype}");
            assert!(!encoded || *out == *bytes, "{dtype}");
            assert_eq!(can_convert(Dtype::I64, dtype), !format.is_of_blocks(), "{dtype}");
        }
    }
}
