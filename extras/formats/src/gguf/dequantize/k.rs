//! K-quants: blocks of 256, in 8 or 16 groups with scales.

use super::{fill, half, nibble, two_bits};

/// 2 bits. For each 16: a scale and a smallest value of 4 bits.
pub(in super::super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let scales = &block[..16];
    let quants = &block[16..80];
    let d = half(block, 80);
    let min = half(block, 82);
    fill(out, |i| {
        let scale = scales[i / 16];
        let q = f32::from(two_bits(quants, i));
        d * f32::from(scale & 15) * q - min * f32::from(scale >> 4)
    });
}

/// 3 bits, the highest separate. For each 16: a scale of 6 bits.
pub(in super::super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let high = &block[..32];
    let quants = &block[32..96];
    let packed = &block[96..108];
    let d = half(block, 108);
    fill(out, |i| {
        let group = i / 16;
        let low = nibble(packed[group % 8], group >= 8);
        let scale = low | (packed[8 + group % 4] >> (2 * (group / 4)) & 3) << 4;
        // The number is 4 less where the bit is not set.
        let lower = if high[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
        let q = i32::from(two_bits(quants, i)) - lower;
        d * (i32::from(scale) - 32) as f32 * q as f32
    });
}

/// For 32 numbers, 6 bits each, packed in 12 bytes.
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let scale = packed[group - 4];
    let min = packed[group];
    let low = packed[group + 4];
    (low & 15 | scale >> 2 & 0x30, low >> 4 | min >> 2 & 0x30)
}

/// For each 32: a scale and a smallest value of 6 bits. `quant` returns the code of a number in a
/// group.
#[inline(always)]
fn above_min(block: &[u8], out: &mut [f32], quant: impl Fn(usize, usize) -> u8) {
    let d = half(block, 0);
    let dmin = half(block, 2);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], group);
        let d = d * f32::from(scale);
        let min = dmin * f32::from(min);
        fill(out, |i| d * f32::from(quant(group, i)) - min);
    }
}

/// 4 bits.
pub(in super::super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let quants = &block[16..144];
    above_min(block, out, |group, i| nibble(quants[group / 2 * 32 + i], group % 2 == 1));
}

/// `Q4_K` with a separate fifth bit.
pub(in super::super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let high = &block[16..48];
    let quants = &block[48..176];
    above_min(block, out, |group, i| {
        nibble(quants[group / 2 * 32 + i], group % 2 == 1) | (high[i] >> group & 1) << 4
    });
}

/// 6 bits, the highest two separate. For each 16: a scale of 8 bits.
pub(in super::super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let low = &block[..128];
    let high = &block[128..192];
    let scales = &block[192..208];
    let d = half(block, 208);
    fill(out, |i| {
        // Two halves of 128 numbers; in each, the low bits are 64 bytes, the high bits are 32.
        let part = i / 128;
        let within = i % 128;
        let low = nibble(low[part * 64 + within % 64], within >= 64);
        let high = high[part * 32 + within % 32] >> (2 * (within / 32)) & 3;
        let q = i32::from(low | high << 4) - 32;
        d * f32::from(scales[i / 16].cast_signed()) * q as f32
    });
}
