//! Blocks of 256: bits select rows of fixed tables, which signs and scales change.

use super::{fill, half};

/// The rows of ggml's tables, from `dev/scripts/other_formats.py`: two bytes each.
static ROWS: &[u8; 9216] = include_bytes!("grids.bin");

struct Table<const N: usize> {
    start: usize,
    numbers: [i8; N],
}

const IQ2: [i8; 3] = [0x08, 0x19, 0x2b];
const IQ2_XXS: Table<3> = Table { start: 0, numbers: IQ2 };
const IQ2_XS: Table<3> = Table { start: 512, numbers: IQ2 };
const IQ2_S: Table<3> = Table { start: 1536, numbers: IQ2 };
const IQ3_XXS: Table<8> =
    Table { start: 3584, numbers: [0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e] };
const IQ3_S: Table<8> = Table { start: 4096, numbers: [1, 3, 5, 7, 9, 11, 13, 15] };
const IQ1: Table<3> = Table { start: 5120, numbers: [-1, 0, 1] };

impl Table<3> {
    fn row(&self, index: usize) -> [f32; 8] {
        std::array::from_fn(|i| {
            let code = ROWS[self.start + 2 * index + i / 4] >> (2 * (i % 4)) & 3;
            // The tables have no fourth code.
            f32::from(self.numbers[usize::from(code).min(2)])
        })
    }
}

impl Table<8> {
    /// Four numbers of four bits; three bits count.
    fn row(&self, index: usize) -> [f32; 4] {
        std::array::from_fn(|i| {
            let code = ROWS[self.start + 2 * index + i / 2] >> (4 * (i % 2)) & 7;
            f32::from(self.numbers[usize::from(code)])
        })
    }
}

/// Seven bits; the last sign makes the number of minus signs even.
fn signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

fn sign(signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 0 { 1.0 } else { -1.0 }
}

fn word(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

fn double_word(bytes: &[u8], i: usize) -> u32 {
    u32::from(word(bytes, 2 * i)) | u32::from(word(bytes, 2 * i + 1)) << 16
}

fn scale(scales: &[u8], i: usize) -> f32 {
    f32::from(scales[i / 2] >> (4 * (i % 2)) & 15)
}

/// For each 32: four rows, four times seven signs, a scale of 4 bits.
pub(in super::super) fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..66];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let rows = double_word(quants, 2 * group);
        let rest = double_word(quants, 2 * group + 1);
        let d = d * (0.5 + (rest >> 28) as f32) * 0.25;
        for (part, out) in out.chunks_exact_mut(8).enumerate() {
            let row = IQ2_XXS.row((rows >> (8 * part) & 255) as usize);
            let signs = signs(rest >> (7 * part));
            fill(out, |i| d * row[i] * sign(signs, i));
        }
    }
}

/// For each 8: a row of 9 bits, seven signs. For each 16: a scale of 4 bits.
pub(in super::super) fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..66];
    let scales = &block[66..74];
    for (part, out) in out.chunks_exact_mut(8).enumerate() {
        let quant = word(quants, part);
        let d = d * (0.5 + scale(scales, part / 2)) * 0.25;
        let row = IQ2_XS.row(usize::from(quant & 511));
        let signs = signs(u32::from(quant >> 9));
        fill(out, |i| d * row[i] * sign(signs, i));
    }
}

/// For each 8: a row of 10 bits, eight signs. For each 16: a scale of 4 bits.
pub(in super::super) fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..34];
    let signs = &block[34..66];
    let high = &block[66..74];
    let scales = &block[74..82];
    for (part, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(high[part / 4] >> (2 * (part % 4)) & 3);
        let row = IQ2_S.row(usize::from(quants[part]) | high << 8);
        let d = d * (0.5 + scale(scales, part / 2)) * 0.25;
        fill(out, |i| d * row[i] * sign(signs[part], i));
    }
}

/// For each 4: a row. For each 32: four times seven signs, a scale of 4 bits.
pub(in super::super) fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..66];
    let scales = &block[66..98];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let rest = double_word(scales, group);
        let d = d * (0.5 + (rest >> 28) as f32) * 0.5;
        fill(out, |i| {
            let row = IQ3_XXS.row(usize::from(quants[group * 8 + i / 4]));
            d * row[i % 4] * sign(signs(rest >> (7 * (i / 8))), i % 8)
        });
    }
}

/// For each 4: a row of 9 bits. For each number: a sign. For each 32: a scale of 4 bits.
pub(in super::super) fn iq3_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..66];
    let high = &block[66..74];
    let signs = &block[74..106];
    let scales = &block[106..110];
    for (part, out) in out.chunks_exact_mut(4).enumerate() {
        let ninth = usize::from(high[part / 8] >> (part % 8) & 1);
        let row = IQ3_S.row(usize::from(quants[part]) | ninth << 8);
        let d = d * (1.0 + 2.0 * scale(scales, part / 8));
        fill(out, |i| d * row[i] * sign(signs[part / 2], part % 2 * 4 + i));
    }
}

const DELTA: f32 = 0.125;

/// For each 8: a row of 11 bits. For each 32: a scale of 3 bits, the sign of the delta.
pub(in super::super) fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let quants = &block[2..34];
    let high = &block[34..50];
    for (part, out) in out.chunks_exact_mut(8).enumerate() {
        let rest = word(high, part / 4);
        let d = d * f32::from(2 * (rest >> 12 & 7) + 1);
        let delta = if rest & 0x8000 == 0 { DELTA } else { -DELTA };
        let high = usize::from(rest >> (3 * (part % 4)) & 7);
        let row = IQ1.row(usize::from(quants[part]) | high << 8);
        fill(out, |i| d * (row[i] + delta));
    }
}

/// For each 8: a row of 11 bits, the sign of the delta. For each 16: a scale of 3 bits. The block's
/// scale is spread over four words.
pub(in super::super) fn iq1_m(block: &[u8], out: &mut [f32]) {
    let quants = &block[..32];
    let high = &block[32..48];
    let scales = &block[48..56];
    let d = (0..4).fold(0, |bits, i| bits | (word(scales, i) & 0xf000) >> (12 - 4 * i));
    let d = half(&d.to_le_bytes(), 0);
    for (part, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = word(scales, part / 8) >> (3 * (part / 2 % 4)) & 7;
        let d = d * f32::from(2 * scale + 1);
        let high = high[part / 2] >> (4 * (part % 2));
        let delta = if high & 8 == 0 { DELTA } else { -DELTA };
        let row = IQ1.row(usize::from(quants[part]) | usize::from(high & 7) << 8);
        fill(out, |i| d * (row[i] + delta));
    }
}
