//! Converts integers and BOOL to each other, to floating point, and back.

use super::block::{Failure, Scratch, aligned, cast_mut, check_all};
use super::double::{integer_to_odd, round_to_odd};
use crate::format::dtype::{Dtype, with_integer};

/// Runs `body` with the Rust type `Int`; `u8` for BOOL.
macro_rules! with_byte_or_integer {
    ($dtype:expr, $Int:ident => $body:expr) => {
        match $dtype {
            Dtype::BOOL => {
                type $Int = u8;
                $body
            }
            dtype => with_integer!(dtype, $Int => $body, else Err(Failure::NoConversion)),
        }
    };
}

pub(super) fn is_integer(dtype: Dtype) -> bool {
    dtype == Dtype::BOOL || dtype.is_integer()
}

/// Fails for a value that the target does not have.
pub(super) fn to_integers(
    from: Dtype,
    to: Dtype,
    src: &[u8],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    with_byte_or_integer!(from, From => with_byte_or_integer!(to, To => {
        let values = aligned::<From>(src, &mut scratch.source);
        let out = cast_mut::<To>(out)?;
        let mut all_fit = true;
        for (&value, out) in values.iter().zip(&mut *out) {
            *out = value as To;
            all_fit &= fits(to, value as i128, *out as i128);
        }
        if all_fit {
            return Ok(());
        }
        check_all(values.iter().map(|&value| {
            let converted = value as To;
            fits(to, value as i128, converted as i128)
        }))
    }))
}

#[inline(always)]
fn fits(to: Dtype, value: i128, converted: i128) -> bool {
    value == converted && (to != Dtype::BOOL || matches!(converted, 0 | 1))
}

/// Rounds to odd, so that a later rounding is right.
pub(super) fn to_odd_f32(
    from: Dtype,
    src: &[u8],
    out: &mut [f32],
    scratch: &mut [u64],
) -> Result<(), Failure> {
    with_byte_or_integer!(from, From => {
        for (&value, out) in aligned::<From>(src, scratch).iter().zip(out) {
            *out = round_to_odd(integer_to_odd(value as i128));
        }
        Ok(())
    })
}

/// Rounds to nearest.
pub(super) fn to_f32(
    from: Dtype,
    src: &[u8],
    out: &mut [f32],
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    with_byte_or_integer!(from, From => {
        for (&value, out) in aligned::<From>(src, &mut scratch.source).iter().zip(out) {
            *out = value as f32;
        }
        Ok(())
    })
}

/// Rounds to nearest.
pub(super) fn to_f64(
    from: Dtype,
    src: &[u8],
    out: &mut [f64],
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    with_byte_or_integer!(from, From => {
        for (&value, out) in aligned::<From>(src, &mut scratch.source).iter().zip(out) {
            *out = value as f64;
        }
        Ok(())
    })
}

/// Fails for a value that is not an integer in the target's range.
pub(super) fn from_floats<T: Copy + Into<f64>>(
    to: Dtype,
    values: &[T],
    out: &mut [u8],
) -> Result<(), Failure> {
    with_byte_or_integer!(to, To => {
        let out = cast_mut::<To>(out)?;
        // Both limits are exact: the upper one is one more than the largest integer, a power of
        // two.
        let (lowest, limit) = match to {
            Dtype::BOOL => (0.0, 2.0),
            _ => (To::MIN as f64, To::MAX as f64 + 1.0),
        };
        // In range the cast cuts off the fraction. So casting back gives the same value only if
        // there is no fraction.
        let fits = |value: f64| value >= lowest && value < limit && (value as To) as f64 == value;
        let mut all_fit = true;
        for (&value, out) in values.iter().zip(out) {
            let value = value.into();
            *out = value as To;
            all_fit &= fits(value);
        }
        if all_fit { Ok(()) } else { check_all(values.iter().map(|&value| fits(value.into()))) }
    })
}

pub(super) fn describe(
    from: Dtype,
    src: &[u8],
    index: usize,
    scratch: &mut Scratch,
) -> Result<i128, Failure> {
    with_byte_or_integer!(from, From => {
        let values = aligned::<From>(src, &mut scratch.source);
        values.get(index).map(|&value| value as i128).ok_or(Failure::NoConversion)
    })
}
