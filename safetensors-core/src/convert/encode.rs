//! Encoding of `f32` values in 16 and 8 bits, rounded to nearest, ties to even.
//!
//! Encoding overflows as IEEE 754 and ml_dtypes do. The other policies are a pass over the values
//! beforehand.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::conversion::{Failure, cast_mut};
use super::small_float::{self, Format, Special};
use super::{Overflow, conversion, vectorized};
use crate::dtype::Dtype;

/// The format of a dtype that can be encoded; `None` for other dtypes.
fn format_of(dtype: Dtype) -> Option<Format> {
    match dtype {
        Dtype::F16 => Some(small_float::F16),
        Dtype::BF16 => Some(small_float::BF16),
        Dtype::F8_E4M3 => Some(small_float::F8_E4M3),
        Dtype::F8_E5M2 => Some(small_float::F8_E5M2),
        Dtype::F8_E4M3FNUZ => Some(small_float::F8_E4M3FNUZ),
        Dtype::F8_E5M2FNUZ => Some(small_float::F8_E5M2FNUZ),
        _ => None,
    }
}

/// Makes `values` fit `to`, as [`Overflow::Saturate`] does.
pub(super) fn saturate(to: Dtype, values: &mut [f32]) {
    let largest = format_of(to).map_or(f32::MAX, Format::largest);
    values.iter_mut().for_each(|value| *value = value.clamp(-largest, largest));
}

/// Checks that `values` fit `to`, as [`Overflow::Error`] does.
fn check(format: Format, values: &[f32]) -> Result<(), Failure> {
    let limit = format.first_overflow();
    let infinity_fits = format.special == Special::Ieee;
    // NaN is not greater than anything.
    let too_large = |value: f32| value.abs() >= limit && !(infinity_fits && value.is_infinite());
    if values.iter().fold(false, |any, &value| any | too_large(value)) {
        return conversion::first(values.iter().map(|&value| !too_large(value)));
    }
    Ok(())
}

/// Encodes `values`, one for each element of `out`. Those for [`Overflow::Saturate`] have been
/// through [`saturate`].
pub(super) fn encode(
    to: Dtype,
    overflow: Overflow,
    values: &[f32],
    out: &mut [u8],
) -> Result<(), Failure> {
    let format = format_of(to).ok_or(Failure::NoConversion)?;
    if overflow == Overflow::Error {
        check(format, values)?;
    }
    // Each call has a constant format, for which the loop is compiled.
    match to {
        Dtype::F16 => cast_mut::<f16>(out)?.convert_from_f32_slice(values),
        Dtype::BF16 => encode_all(values, cast_mut(out)?, encode_bf16),
        Dtype::F8_E4M3 => encode_all(values, out, |value| encode_byte(small_float::F8_E4M3, value)),
        Dtype::F8_E5M2 => encode_all(values, out, |value| encode_byte(small_float::F8_E5M2, value)),
        Dtype::F8_E4M3FNUZ => {
            encode_all(values, out, |value| encode_byte(small_float::F8_E4M3FNUZ, value))
        }
        Dtype::F8_E5M2FNUZ => {
            encode_all(values, out, |value| encode_byte(small_float::F8_E5M2FNUZ, value))
        }
        _ => return Err(Failure::NoConversion),
    }
    Ok(())
}

#[inline(always)]
fn encode_all<T>(values: &[f32], out: &mut [T], encode: impl Fn(f32) -> T) {
    vectorized(|| {
        for (&value, out) in values.iter().zip(out) {
            *out = encode(value);
        }
    });
}

/// bfloat16 is the upper half of an `f32`: adding half of what is cut off rounds it, and a carry is
/// right up to infinity.
#[inline(always)]
fn encode_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let even = bits >> 16 & 1;
    let rounded = bits.wrapping_add(0x7fff + even) >> 16;
    // A carry could make a NaN infinite; cutting it off could, too, without the quiet bit.
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

/// The code of `value` in a format of 8 bits. Free of branches, so that the loop around it becomes
/// vector code.
#[inline(always)]
fn encode_byte(format: Format, value: f32) -> u8 {
    let dropped = format.dropped_bits();
    let smallest_normal = f32::from_bits((128 - format.bias) << 23);
    // What is larger than all numbers gets the code after the largest: infinity or NaN in every
    // format. `min` drops NaN.
    let magnitude = value.abs().min(format.after_largest());
    // The power of two below the magnitude; for subnormals that of the smallest normal, whose
    // spacing they have.
    let power = magnitude.max(smallest_normal).to_bits() & 0x7f80_0000;
    // A number so large that its last bit is worth as much as the format's last bit: the sum is
    // rounded to that, ties to even, and its low bits are the significand, hidden bit included.
    let sum = magnitude + f32::from_bits(power + (dropped << 23));
    let significand = sum.to_bits();
    // The exponent in its place, counted from the smallest normal: there the hidden bit brings the
    // missing one.
    let exponent = power >> dropped;
    let code = (significand.wrapping_add(exponent) as u8)
        .wrapping_sub((smallest_normal.to_bits() >> dropped) as u8);
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    match format.special {
        // Both the code after the largest number and that of negative zero would be NaN.
        Special::NegativeZeroNan if code == 0 => 0,
        // The code after the largest number is infinity.
        Special::Ieee if value.is_nan() => sign | 0x7e,
        _ => sign | code,
    }
}
