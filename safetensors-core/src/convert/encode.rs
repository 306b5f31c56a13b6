//! Encoding of `f32` values in 16 and 8 bits, rounded to nearest, ties to even.
//!
//! Encoding overflows as IEEE 754 and ml_dtypes do. The other policies are a pass over the values
//! beforehand.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::Overflow;
use super::block::{self, Failure, cast_mut, vectorized};
use crate::dtype::{Dtype, Format, Special, with_float};

/// Makes `values` fit `to`, as [`Overflow::Saturate`] does.
pub(super) fn saturate(to: Dtype, values: &mut [f32]) {
    let largest = match to.format() {
        Some(format) if format.bits() < 32 => format.largest(),
        _ => f32::MAX,
    };
    values.iter_mut().for_each(|value| *value = value.clamp(-largest, largest));
}

/// Checks that `values` fit `to`, as [`Overflow::Error`] does.
fn check(format: Format, values: &[f32]) -> Result<(), Failure> {
    let limit = format.first_overflow();
    let infinity_fits = format.special == Special::Ieee;
    // NaN is not greater than anything.
    let too_large = |value: f32| value.abs() >= limit && !(infinity_fits && value.is_infinite());
    if values.iter().fold(false, |any, &value| any | too_large(value)) {
        return block::first(values.iter().map(|&value| !too_large(value)));
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
    with_float!(to, FORMAT => {
        if FORMAT.is_of_blocks() || FORMAT.bits() > 16 {
            return Err(Failure::NoConversion);
        }
        if overflow == Overflow::Error {
            check(FORMAT, values)?;
        }
        // The format is a constant, so one of these loops is compiled for it.
        if FORMAT == Format::HALF {
            cast_mut::<f16>(out)?.convert_from_f32_slice(values);
        } else if FORMAT.is_upper_part_of_f32() {
            encode_all(values, cast_mut(out)?, encode_bf16);
        } else if FORMAT.bits() == 16 {
            encode_all(values, cast_mut(out)?, |value| encode_code(FORMAT, value) as u16);
        } else {
            encode_all(values, out, |value| encode_code(FORMAT, value) as u8);
        }
        Ok(())
    }, else Err(Failure::NoConversion))
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

/// The code of `value` in a format of 16 bits and fewer, with a smaller exponent than `f32`. Free
/// of branches, so that the loop around it becomes vector code.
#[inline(always)]
pub(super) fn encode_code(format: Format, value: f32) -> u32 {
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
    let all = u32::MAX >> (32 - format.bits());
    let code =
        significand.wrapping_add(exponent).wrapping_sub(smallest_normal.to_bits() >> dropped);
    // The code after the largest number is NaN, though it may be in the place of the sign.
    let code = code & all;
    let sign = value.to_bits() >> 31 << (format.bits() - 1);
    match format.special {
        // Both the code after the largest number and that of negative zero would be NaN.
        Special::NegativeZeroNan if code == 0 => 0,
        // The code after the largest number is infinity.
        Special::Ieee if value.is_nan() => sign | (all >> 1 & !1),
        _ => sign | code,
    }
}
