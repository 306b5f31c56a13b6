//! The K-quants: blocks of 256 numbers, in 8 or 16 groups that each have scales.

use super::{half, nibble};

/// 2 bits; a scale and a smallest value of 4 bits for each 16 numbers.
pub(in super::super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let scales = &block[..16];
    let quants = &block[16..80];
    let d = half(block, 80);
    let min = half(block, 82);
    for (i, out) in out.iter_mut().enumerate() {
        let scale = scales[i / 16];
        let q = quants[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
        *out = d * f32::from(scale & 15) * f32::from(q) - min * f32::from(scale >> 4);
    }
}

/// 3 bits, the highest of them stored separately; a scale of 6 bits for each 16 numbers.
pub(in super::super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let high = &block[..32];
    let quants = &block[32..96];
    let packed = &block[96..108];
    let d = half(block, 108);
    let scale = |group: usize| {
        let low = nibble(packed[group % 8], group >= 8);
        let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        i32::from(low | high << 4) - 32
    };
    for (i, out) in out.iter_mut().enumerate() {
        let q = quants[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
        // The number is 4 less where the bit is not set.
        let lower = if high[i % 32] >> (i / 32) & 1 == 0 { 4 } else { 0 };
        *out = d * scale(i / 16) as f32 * (i32::from(q) - lower) as f32;
    }
}

/// Returns the scale and the smallest value of a group of 32 numbers, 6 bits each, packed in 12
/// bytes.
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let scale = packed[group - 4];
    let min = packed[group];
    let low = packed[group + 4];
    (low & 15 | scale >> 2 & 0x30, low >> 4 | min >> 2 & 0x30)
}

/// 4 bits; a scale and a smallest value of 6 bits for each 32 numbers.
pub(in super::super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let dmin = half(block, 2);
    let packed = &block[4..16];
    let quants = &block[16..144];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let d = d * f32::from(scale);
        let min = dmin * f32::from(min);
        for (i, out) in out.iter_mut().enumerate() {
            let q = nibble(quants[group / 2 * 32 + i], group % 2 == 1);
            *out = d * f32::from(q) - min;
        }
    }
}

/// `Q4_K` with a fifth bit, which is stored separately.
pub(in super::super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let dmin = half(block, 2);
    let packed = &block[4..16];
    let high = &block[16..48];
    let quants = &block[48..176];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let d = d * f32::from(scale);
        let min = dmin * f32::from(min);
        for (i, out) in out.iter_mut().enumerate() {
            let low = nibble(quants[group / 2 * 32 + i], group % 2 == 1);
            let q = low | (high[i] >> group & 1) << 4;
            *out = d * f32::from(q) - min;
        }
    }
}

/// 6 bits, the highest two of them stored separately; a scale of 8 bits for each 16 numbers.
pub(in super::super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let low = &block[..128];
    let high = &block[128..192];
    let scales = &block[192..208];
    let d = half(block, 208);
    for (i, out) in out.iter_mut().enumerate() {
        // Two halves of 128 numbers; in each, the low bits are 64 bytes, the high bits are 32.
        let part = i / 128;
        let within = i % 128;
        let low = nibble(low[part * 64 + within % 64], within >= 64);
        let high = high[part * 32 + within % 32] >> (2 * (within / 32)) & 3;
        let q = i32::from(low | high << 4) - 32;
        *out = d * f32::from(scales[i / 16].cast_signed()) * q as f32;
    }
}
