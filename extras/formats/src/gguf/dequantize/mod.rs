//! The numbers of quantised blocks, bit for bit as in the reference:
//! the same operations on F32 in the same order.

pub(super) mod iq;
pub(super) mod k;
pub(super) mod other;
pub(super) mod simple;

use half::f16;

pub(super) type Dequantize = fn(&[u8], &mut [f32]);

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nibble(byte: u8, high: bool) -> u8 {
    if high { byte >> 4 } else { byte & 15 }
}

/// A byte has two bits of four numbers that are 32 apart.
fn two_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

#[inline(always)]
fn fill(out: &mut [f32], number: impl Fn(usize) -> f32) {
    out.iter_mut().enumerate().for_each(|(i, out)| *out = number(i));
}
