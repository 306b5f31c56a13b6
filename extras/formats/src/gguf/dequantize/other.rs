//! Tables of values, ternary numbers, and floats of 4 bits.

use super::{fill, half, nibble, two_bits};

fn not_linear(q: u8) -> f32 {
    const VALUES: [i8; 16] =
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f32::from(VALUES[usize::from(q)])
}

/// Twice the value of a float of 4 bits.
fn float(q: u8) -> f32 {
    const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    f32::from(VALUES[usize::from(q)])
}

/// 4 bits that select one of 16 values; blocks of 32.
pub(in super::super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..18];
    fill(out, |i| d * not_linear(nibble(quants[i % 16], i >= 16)));
}

/// `IQ4_NL` in blocks of 256, with a scale of 6 bits for each 32.
pub(in super::super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let scales_high = u16::from_le_bytes([block[2], block[3]]);
    let scales_low = &block[4..8];
    let quants = &block[8..136];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let low = nibble(scales_low[group / 2], group % 2 == 1);
        let high = (scales_high >> (2 * group) & 3) as u8;
        let d = d * (i32::from(low | high << 4) - 32) as f32;
        fill(out, |i| d * not_linear(nibble(quants[group * 16 + i % 16], i >= 16)));
    }
}

/// -1, 0 and 1, five in a byte.
pub(in super::super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = half(block, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, out) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        fill(out, |i| {
            let byte = bytes[i % bytes.len()].wrapping_mul(POWERS[i / bytes.len()]);
            d * (((u16::from(byte) * 3) >> 8) as i32 - 1) as f32
        });
    }
}

/// -1, 0 and 1, four in a byte.
pub(in super::super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 64);
    fill(out, |i| d * (i32::from(two_bits(block, i)) - 1) as f32);
}

/// Floats of 4 bits, with a power of two as scale for each 32.
pub(in super::super) fn mxfp4(block: &[u8], out: &mut [f32]) {
    // Half of the scale, because the values are doubled. The two smallest are not normal numbers.
    let d = f32::from_bits(match u32::from(block[0]) {
        exponent @ 0..2 => 0x0020_0000 << exponent,
        exponent => (exponent - 1) << 23,
    });
    fill(out, |i| d * float(nibble(block[1 + i % 16], i >= 16)));
}

/// Floats of 4 bits, with a float of 8 bits as scale for each 16.
pub(in super::super) fn nvfp4(block: &[u8], out: &mut [f32]) {
    let scales = &block[..4];
    let quants = &block[4..36];
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let exponent = scales[group] >> 3 & 15;
        let fraction = f32::from(scales[group] & 7);
        // Half of the scale, because the values are doubled.
        let d = match (scales[group], exponent) {
            (0 | 0x7f, _) => 0.0,
            (_, 0) => fraction / 512.0 * 0.5,
            _ => (1.0 + fraction / 8.0) * f32::powi(2.0, i32::from(exponent) - 7) * 0.5,
        };
        fill(out, |i| d * float(nibble(quants[group * 8 + i % 8], i >= 8)));
    }
}
