//! Blocks of numbers with one scale, and perhaps a smallest value.

use super::{half, nibble};

/// One bit: the scale or its negative.
pub(in super::super) fn q1_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.iter_mut().enumerate() {
        *out = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

/// 2 bits, from -1 to 2.
pub(in super::super) fn q2_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.iter_mut().enumerate() {
        let q = block[2 + i / 4] >> (2 * (i % 4)) & 3;
        *out = (f32::from(q) - 1.0) * d;
    }
}

/// 4 bits, from -8 to 7.
pub(in super::super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..18];
    for (i, out) in out.iter_mut().enumerate() {
        let q = i32::from(nibble(quants[i % 16], i >= 16)) - 8;
        *out = d * q as f32;
    }
}

/// 4 bits above a smallest value.
pub(in super::super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let min = half(block, 2);
    let quants = &block[4..20];
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(quants[i % 16], i >= 16);
        *out = d * f32::from(q) + min;
    }
}

/// Returns the fifth bit of number `i`, in its place.
fn fifth(high: &[u8], i: usize) -> u8 {
    (high[i / 8] >> (i % 8) & 1) << 4
}

/// 5 bits, from -16 to 15.
pub(in super::super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let high = &block[2..6];
    let quants = &block[6..22];
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(quants[i % 16], i >= 16) | fifth(high, i);
        *out = d * (i32::from(q) - 16) as f32;
    }
}

/// 5 bits above a smallest value.
pub(in super::super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let min = half(block, 2);
    let high = &block[4..8];
    let quants = &block[8..24];
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(quants[i % 16], i >= 16) | fifth(high, i);
        *out = d * f32::from(q) + min;
    }
}

/// 8 bits with a sign.
pub(in super::super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (out, &quant) in out.iter_mut().zip(&block[2..34]) {
        *out = f32::from(quant.cast_signed()) * d;
    }
}
