//! Rounding to codes and scales as in compressed-tensors.

use crate::format::convert::{Conversion, ConvertOptions, Overflow};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

pub(super) const LARGEST_E4M3: f32 = 448.0;
pub(super) const LARGEST_E2M1: f32 = 6.0;

/// The numbers of E2M1 by code.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Returns infinity or NaN if there is one among the numbers.
pub(super) fn largest(numbers: &[f32]) -> f32 {
    // Magnitudes are in the order of their bits. NaN comes after infinity.
    let bits = numbers.iter().fold(0, |most, number| most.max(number.to_bits() & 0x7fff_ffff));
    f32::from_bits(bits)
}

/// Replaces the numbers by their rounded values. One that is too large becomes the largest.
pub(super) fn round_to_e4m3(numbers: &mut [f32], codes: &mut [u8]) -> Result<()> {
    let options = ConvertOptions::new().overflow(Overflow::Saturate);
    let encode = Conversion::new(Dtype::F32, Dtype::F8_E4M3, &options)?;
    encode.run(bytemuck::cast_slice(numbers), codes, 0)?;
    let decode = Conversion::new(Dtype::F8_E4M3, Dtype::F32, &options)?;
    Ok(decode.run(codes, bytemuck::cast_slice_mut(numbers), 0)?)
}

/// Replaces the numbers by their codes.
pub(super) fn round_to_i8(numbers: &mut [f32], codes: &mut [u8]) {
    // The last bit of a number of this size is 1, so that a sum is rounded to an integer. Its
    // lowest bits are that integer in two's complement.
    const SHIFT: f32 = (3 << 22) as f32;
    for (code, number) in codes.iter_mut().zip(numbers) {
        let shifted = number.clamp(-128.0, 127.0) + SHIFT;
        (*code, *number) = (shifted.to_bits() as u8, shifted - SHIFT);
    }
}

/// Turns a number that is too large into the largest.
#[inline(always)]
pub(super) fn to_e2m1(number: f32) -> u8 {
    let sign = (number.to_bits() >> 28) as u8 & 8;
    let magnitude = number.abs();
    // Halfway between two numbers, the one with an even code.
    let passed = u8::from(magnitude > 0.25)
        + u8::from(magnitude >= 0.75)
        + u8::from(magnitude > 1.25)
        + u8::from(magnitude >= 1.75)
        + u8::from(magnitude > 2.5)
        + u8::from(magnitude >= 3.5)
        + u8::from(magnitude > 5.0);
    sign | passed
}

/// Replaces the magnitudes of groups by their scales, and returns the codes of these.
pub(super) fn nvfp4_scales(global: f32, magnitudes: &mut [f32]) -> Result<Vec<u8>> {
    let mut codes = vec![0; magnitudes.len()];
    magnitudes.iter_mut().for_each(|it| *it = global * (*it / LARGEST_E2M1));
    round_to_e4m3(magnitudes, &mut codes)?;
    for (code, scale) in codes.iter_mut().zip(magnitudes).filter(|(code, _)| **code == 0) {
        // So that nothing is divided by zero.
        (*code, *scale) = (0x20, 0.125);
    }
    Ok(codes)
}

/// Replaces the magnitudes of groups by powers of two, and returns the codes of these. A magnitude
/// is first rounded to one binary digit after the point.
pub(super) fn mxfp4_scales(magnitudes: &mut [f32]) -> Vec<u8> {
    let scale = |magnitude: &mut f32| {
        let rounded = magnitude.to_bits() + (1 << 21);
        let code = (rounded >> 23).saturating_sub(2);
        // 2^(code − 127)
        *magnitude = f32::from_bits(if code == 0 { 1 << 22 } else { code << 23 });
        code as u8
    };
    magnitudes.iter_mut().map(scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{Codes, Order};

    #[test]
    fn codes_of_four_bits_are_the_nearest() {
        let codes = Codes::of_dtype(Dtype::F4, Order::LowFirst).unwrap();
        for code in 0..16 {
            assert_eq!(codes.value(code), E2M1[code as usize]);
            assert_eq!(u32::from(to_e2m1(codes.value(code))), code);
        }
        for code in 0..7 {
            let (low, high) = (codes.value(code), codes.value(code + 1));
            let middle = f32::midpoint(low, high);
            assert_eq!(u32::from(to_e2m1(middle)), code + code % 2);
            assert_eq!(u32::from(to_e2m1(middle.next_down())), code);
            assert_eq!(u32::from(to_e2m1(middle.next_up())), code + 1);
        }
        assert_eq!((to_e2m1(1e9), to_e2m1(-7.0)), (7, 15));
    }

    #[test]
    fn integers_are_the_nearest_ties_to_even() {
        let mut numbers = [0.5, 1.5, -0.5, -1.5, 126.5, 127.5, -128.5, 3.49, -200.0, -0.0];
        let mut codes = [0; 10];
        round_to_i8(&mut numbers, &mut codes);
        let expected = [0, 2, 0, -2, 126, 127, -128, 3, -128, 0];
        assert_eq!(codes.map(|code| code as i8), expected);
        assert_eq!(numbers, expected.map(f32::from));
    }

    #[test]
    fn scales_of_groups_equal_their_codes() {
        let codes = Codes::of_dtype(Dtype::F8_E4M3, Order::LowFirst).unwrap();
        let numbers: Vec<f32> = (1..0x7f).map(|code| codes.value(code)).collect();
        let mut scales: Vec<f32> = numbers.iter().map(|number| number * LARGEST_E2M1).collect();
        assert_eq!(nvfp4_scales(1.0, &mut scales).unwrap(), (1..0x7f).collect::<Vec<u8>>());
        assert_eq!(scales, numbers);
        let mut ends = [0.0, 1e9];
        assert_eq!(nvfp4_scales(1.0, &mut ends).unwrap(), [0x20, 0x7e]);
        assert_eq!(ends, [0.125, 448.0]);
        let mut powers = [0.0, 4.0, 6.9, 7.0, 1e-38, 1.0, f32::MAX];
        assert_eq!(mxfp4_scales(&mut powers), [0, 127, 127, 128, 0, 125, 253]);
        let tiny = 2_f32.powi(-127);
        assert_eq!(powers, [tiny, 1.0, 1.0, 2.0, tiny, 0.25, 2_f32.powi(126)]);
    }
}
