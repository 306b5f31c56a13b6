//! Encodes `f32` in 16 and 8 bits, rounded to nearest, ties to even.
//!
//! Overflows as [`Overflow::Ieee`]. The others need a pass over the values before.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::Overflow;
use super::block::{self, Failure, cast_mut, vectorized};
use crate::format::dtype::{Dtype, Format, Special, with_float};

/// The pass for [`Overflow::Saturate`].
pub(super) fn saturate(to: Dtype, values: &mut [f32]) {
    let largest = match to.format() {
        Some(format) if format.bits() < 32 => format.largest(),
        _ => f32::MAX,
    };
    values.iter_mut().for_each(|value| *value = value.clamp(-largest, largest));
}

/// The pass for [`Overflow::Error`].
fn check(format: Format, values: &[f32]) -> Result<(), Failure> {
    let limit = format.first_overflow();
    let infinity_fits = format.special == Special::Ieee;
    // NaN is never too large, because it compares as false.
    let too_large = |value: f32| value.abs() >= limit && !(infinity_fits && value.is_infinite());
    if values.iter().fold(false, |any, &value| any | too_large(value)) {
        return block::check_all(values.iter().map(|&value| !too_large(value)));
    }
    Ok(())
}

/// Overflows as [`Overflow::Ieee`], unless the caller has called [`saturate`].
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
        // The format is a constant. So for each format only one of these loops is compiled.
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

// Adding half of the last kept bit rounds. A carry into the exponent is right, even to infinity.
#[inline(always)]
fn encode_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let even = bits >> 16 & 1;
    let rounded = bits.wrapping_add(0x7fff + even) >> 16;
    // A NaN must not become infinity. A carry could do that, and so could cutting off its low bits;
    // setting the quiet bit prevents it.
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

/// Encodes in at most 16 bits with fewer exponents than `f32`.
// Without branches, so that it compiles to vector instructions.
#[inline(always)]
pub(super) fn encode_code(format: Format, value: f32) -> u32 {
    let dropped = format.dropped_bits();
    let smallest_normal = f32::from_bits((128 - format.bias) << 23);
    // A number that is too large gets the code after the largest number, which is infinity or NaN
    // in every format. `min` also replaces NaN.
    let magnitude = value.abs().min(format.after_largest());
    // The exponent of the magnitude. Subnormals get the exponent of the smallest normal number,
    // because their spacing is the same.
    let power = magnitude.max(smallest_normal).to_bits() & 0x7f80_0000;
    // The second summand is so large that the last bit of the sum is worth as much as the last bit
    // of the format. So the addition rounds to the format's precision, ties to even. The low bits
    // of the sum are then the significand, including the hidden bit.
    let sum = magnitude + f32::from_bits(power + (dropped << 23));
    let significand = sum.to_bits();
    // The exponent, shifted to its place and counted from the smallest normal number. Adding the
    // significand adds one to it, because of the hidden bit.
    let exponent = power >> dropped;
    let all = u32::MAX >> (32 - format.bits());
    let code =
        significand.wrapping_add(exponent).wrapping_sub(smallest_normal.to_bits() >> dropped);
    // Keeps the code within the format's bits. In FNUZ formats the code after the largest number,
    // which is NaN, is the sign bit alone.
    let code = code & all;
    let sign = value.to_bits() >> 31 << (format.bits() - 1);
    match format.special {
        // Zero must not get a sign, because the code of negative zero is NaN.
        Special::NegativeZeroNan if code == 0 => 0,
        // `min` has replaced NaN by a number that encodes as infinity, so NaN gets its code here.
        Special::Ieee if value.is_nan() => sign | (all >> 1 & !1),
        _ => sign | code,
    }
}
