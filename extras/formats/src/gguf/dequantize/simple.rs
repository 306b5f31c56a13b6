//! Blocks of numbers with one scale, and perhaps a smallest value.

use super::{fill, half, nibble};

/// One bit: the scale or its negative.
pub(in super::super) fn q1_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    fill(out, |i| if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d });
}

/// 2 bits, from -1 to 2.
pub(in super::super) fn q2_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    fill(out, |i| (f32::from(block[2 + i / 4] >> (2 * (i % 4)) & 3) - 1.0) * d);
}

pub(in super::super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..18];
    fill(out, |i| d * (i32::from(nibble(quants[i % 16], i >= 16)) - 8) as f32);
}

/// 4 bits above a smallest value.
pub(in super::super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let min = half(block, 2);
    let quants = &block[4..20];
    fill(out, |i| d * f32::from(nibble(quants[i % 16], i >= 16)) + min);
}

fn five(quants: &[u8], high: &[u8], i: usize) -> u8 {
    nibble(quants[i % 16], i >= 16) | (high[i / 8] >> (i % 8) & 1) << 4
}

pub(in super::super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let high = &block[2..6];
    let quants = &block[6..22];
    fill(out, |i| d * (i32::from(five(quants, high, i)) - 16) as f32);
}

/// 5 bits above a smallest value.
pub(in super::super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let min = half(block, 2);
    let high = &block[4..8];
    let quants = &block[8..24];
    fill(out, |i| d * f32::from(five(quants, high, i)) + min);
}

pub(in super::super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..34];
    fill(out, |i| f32::from(quants[i].cast_signed()) * d);
}
