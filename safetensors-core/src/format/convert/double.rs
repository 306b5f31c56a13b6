//! Converts F64 and integers to narrower floats without rounding twice.

use super::Overflow;
use super::block::{Failure, check_all};

/// Rounds to odd, so that a second rounding to fewer bits gives the result of rounding once.
// A value between two `f32` becomes the one that ends in a 1 bit. So the result is a tie, or a
// number of the narrower format, only if the value is. See Boldo and Melquiond, "Emulation of a FMA
// and correctly rounded sums: proved algorithms using rounding to odd", 2008.
#[inline(always)]
pub(super) fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    // The neighbour on the other side of the value. It is odd if the nearest is even. As integers,
    // the bits of neighbours differ by 1, also between numbers of different exponent.
    let other = if back.abs() < value.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let exact = back == value || value.is_nan();
    f32::from_bits(if exact || bits & 1 == 1 { bits } else { other })
}

/// Rounds more than 53 bits to odd.
#[inline(always)]
pub(super) fn integer_to_odd(value: i128) -> f64 {
    let magnitude = value.unsigned_abs() as u64;
    let sticky = u64::from(magnitude & 0x7ff != 0);
    let odd = if magnitude >> 53 == 0 { magnitude } else { (magnitude >> 11 | sticky) << 11 };
    if value < 0 { -(odd as f64) } else { odd as f64 }
}

/// Rounds to nearest.
pub(super) fn narrow(overflow: Overflow, values: &[f64], out: &mut [f32]) -> Result<(), Failure> {
    for (&value, out) in values.iter().zip(&mut *out) {
        *out = value as f32;
    }
    match overflow {
        Overflow::Ieee => Ok(()),
        Overflow::Saturate => {
            out.iter_mut().for_each(|out| *out = out.clamp(-f32::MAX, f32::MAX));
            Ok(())
        }
        Overflow::Error => check_all(
            values.iter().zip(out).map(|(value, out)| value.is_infinite() || !out.is_infinite()),
        ),
    }
}

pub(super) fn widen(overflow: Overflow, values: &[f32], out: &mut [f64]) {
    for (&value, out) in values.iter().zip(&mut *out) {
        *out = f64::from(value);
    }
    if overflow == Overflow::Saturate {
        out.iter_mut().for_each(|out| *out = out.clamp(-f64::MAX, f64::MAX));
    }
}
