//! Blocks of quantised types, as `quants.py` of the Python package `gguf` makes them.

use half::f16;
use safetensors_core::framework::write_in_pieces;
use safetensors_core::save::Sink;
use safetensors_core::{self as core, TensorSource};

use crate::error::ErrorKind;
use crate::gguf::Type;

const LEN: usize = 32;

/// Complete blocks.
const NUMBERS: usize = 64 << 10;

/// `false` if the scale is not finite in F16.
pub(super) type Quantize = fn(&[f32; LEN], &mut [u8]) -> bool;

pub(super) fn quantizer(kind: Type) -> Option<Quantize> {
    match kind.name() {
        "Q8_0" => Some(q8_0),
        "Q4_0" => Some(q4_0),
        _ => None,
    }
}

/// Passes on the blocks of `count` F32.
pub(super) fn write_blocks(
    numbers: &dyn TensorSource,
    count: u64,
    kind: Type,
    quantize: Quantize,
    sink: &mut Sink<'_>,
) -> core::Result<()> {
    let mut out = Vec::new();
    let mut done = 0;
    write_in_pieces(numbers, count * 4, NUMBERS * 4, &mut |piece| {
        out.resize(piece.len() / 4 / LEN * kind.block_bytes(), 0);
        quantize_all(piece, quantize, &mut out)
            .map_err(|(index, value)| refuse(done + index, value, kind))?;
        done += piece.len() as u64 / 4;
        sink(&out)
    })
}

fn quantize_all(bytes: &[u8], quantize: Quantize, out: &mut [u8]) -> Result<(), (u64, f32)> {
    let (blocks, _) = bytes.as_chunks::<{ LEN * 4 }>();
    let size = out.len() / blocks.len().max(1);
    for (i, (bytes, out)) in blocks.iter().zip(out.chunks_exact_mut(size)).enumerate() {
        let mut block = [0.0; LEN];
        for (number, &bytes) in block.iter_mut().zip(bytes.as_chunks().0) {
            *number = f32::from_le_bytes(bytes);
        }
        if !quantize(&block, out) {
            let not_finite = block.iter().position(|number| !number.is_finite());
            let position = not_finite.unwrap_or_else(|| largest(&block));
            return Err(((i * LEN + position) as u64, block[position]));
        }
    }
    Ok(())
}

fn refuse(index: u64, value: f32, kind: Type) -> core::Error {
    let value = format!("{value:?}");
    ErrorKind::NotQuantisable { index, value, kind: kind.name() }.into()
}

fn largest(block: &[f32; LEN]) -> usize {
    let mut best = 0;
    for (i, number) in block.iter().enumerate() {
        if number.abs() > block[best].abs() {
            best = i;
        }
    }
    best
}

/// `codes` gets the inverse scale, or 0 for 0. `false` if the scale or a number is not finite.
fn quantize(
    block: &[f32; LEN],
    d: f32,
    out: &mut [u8],
    codes: impl FnOnce(f32, &mut [u8]),
) -> bool {
    let half = f16::from_f32(d);
    let (scale, out) = out.split_at_mut(2);
    scale.copy_from_slice(&half.to_le_bytes());
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    if inverse.is_finite() {
        codes(inverse, out);
    } else {
        // The scale is so small that it is 0 in F16. The codes mean nothing then, and the reference
        // writes 0 for them.
        out.fill(0);
    }
    // All of the numbers are looked at, so that it can be vectorised.
    half.is_finite() && block.iter().fold(true, |all, number| all & number.is_finite())
}

/// 8 bits with a sign; the largest magnitude becomes 127.
fn q8_0(block: &[f32; LEN], out: &mut [u8]) -> bool {
    let magnitude = block.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    quantize(block, magnitude / 127.0, out, |inverse, codes| {
        for (&number, code) in block.iter().zip(codes) {
            // Rounded to nearest, ties away from zero, without a call of a function.
            let scaled = number * inverse;
            let whole = scaled.abs() as i32;
            let rounded = whole + (2.0 * (scaled.abs() - whole as f32)) as i32;
            *code = (if scaled < 0.0 { -rounded } else { rounded }) as u8;
        }
    })
}

/// 4 bits, from -8 to 7; the largest magnitude becomes -8.
fn q4_0(block: &[f32; LEN], out: &mut [u8]) -> bool {
    quantize(block, block[largest(block)] / -8.0, out, |inverse, codes| {
        let code = |number: f32| ((number * inverse + 8.5) as i32).min(15) as u8;
        let (low, high) = block.split_at(LEN / 2);
        for ((&low, &high), out) in low.iter().zip(high).zip(codes) {
            *out = code(low) | code(high) << 4;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(quantize: Quantize, block: &[f32; LEN], size: usize) -> Option<Vec<u8>> {
        let mut out = vec![0xaa; size];
        quantize(block, &mut out).then_some(out)
    }

    #[test]
    fn ties_are_rounded_as_the_reference_rounds_them() {
        // The scale is 1, so that the codes are the rounded numbers.
        let mut block = [0.0; LEN];
        block[..8].copy_from_slice(&[127.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.499_999_97, -126.5]);
        let out = bytes(q8_0, &block, 34).unwrap();
        let codes: Vec<_> = out[2..10].iter().map(|code| code.cast_signed()).collect();
        assert_eq!(codes, [127, 1, -1, 2, 3, -3, 0, -127]);
        let mut block = [0.0; LEN];
        block[..4].copy_from_slice(&[-8.0, 8.0, 7.5, -0.5]);
        let out = bytes(q4_0, &block, 18).unwrap();
        assert_eq!(out[..6], [0x00, 0x3c, 0x80, 0x8f, 0x8f, 0x88]);
    }

    #[test]
    fn numbers_that_no_block_can_hold_are_refused() {
        for quantize in [q8_0, q4_0] {
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                for at in [0, 7, 31] {
                    let mut block = [1.0; LEN];
                    block[at] = wrong;
                    assert!(bytes(quantize, &block, 34).is_none(), "{wrong} at {at}");
                }
            }
            // The inverse of the scale is infinite.
            let mut block = [1e-44; LEN];
            assert_eq!(bytes(quantize, &block, 34).unwrap()[2..18], [0; 16]);
            block[3] = f32::NAN;
            assert!(bytes(quantize, &block, 34).is_none());
        }
    }
}
