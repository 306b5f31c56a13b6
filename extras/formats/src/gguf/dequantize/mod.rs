//! The numbers of quantised blocks, as the reference implementation computes them: the same
//! operations on 32-bit floats in the same order, so that every bit agrees.

pub(super) mod iq;
pub(super) mod k;
pub(super) mod other;
pub(super) mod simple;

use half::f16;

/// Fills the numbers of a block. Both lengths come from the table of types.
pub(super) type Dequantize = fn(&[u8], &mut [f32]);

/// Returns the 16-bit float at a position.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns the low half of a byte, then the high half.
fn nibble(byte: u8, high: bool) -> u8 {
    if high { byte >> 4 } else { byte & 15 }
}

/// Returns two bits of number `i`: a byte has them of four numbers, which are 32 apart.
fn two_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// Computes each number by its position.
#[inline(always)]
fn fill(out: &mut [f32], number: impl Fn(usize) -> f32) {
    out.iter_mut().enumerate().for_each(|(i, out)| *out = number(i));
}
