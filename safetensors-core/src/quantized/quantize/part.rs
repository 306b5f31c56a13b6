//! [`QuantizedPart`]: the codes or the scales of a weight, made while they are written.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Quantization;
use crate::convert::{Conversion, ConvertOptions, Converted, Overflow, STREAMED};
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::tensor::{Sink, TensorSource, swap_on_big_endian, write_exactly};

/// The number of elements that are quantised at a time: whole groups of all schemes.
const ELEMENTS: usize = STREAMED / 8;

/// The largest numbers of the codes.
const LARGEST_E4M3: f32 = 448.0;
const LARGEST_E2M1: f32 = 6.0;

/// One of the tensors that store a quantised weight: its codes, or scales of them.
///
/// It is made while it is written, piece by piece, from the numbers of `S`. The tensors of one
/// weight share what one of them has found, such as the largest magnitude of each row.
#[derive(Debug)]
pub struct QuantizedPart<S> {
    weight: Arc<Weight<S>>,
    kind: Kind,
    dtype: Dtype,
    shape: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Codes,
    Scales,
    /// The scale of all scales.
    Global,
}

/// The weight as F32.
#[derive(Debug)]
struct Weight<S> {
    source: Converted<S>,
    how: Quantization,
    /// The shape of the matrix.
    matrix: [usize; 2],
    /// The rows and columns that share a magnitude.
    cell: [usize; 2],
    /// The largest magnitude of each cell, once they are known.
    magnitudes: Mutex<Option<Arc<[f32]>>>,
}

/// The parts of a weight, with their names.
pub(super) fn parts<S: TensorSource + Send>(
    how: Quantization,
    name: &str,
    source: Converted<S>,
) -> Vec<(String, QuantizedPart<S>)> {
    let (rows, columns) = match *source.shape() {
        [rows, columns] => (rows, columns),
        _ => unreachable!("the shape was checked"),
    };
    let cell = match how {
        Quantization::Fp8Block128 => [128, 128],
        Quantization::Fp8Channel | Quantization::Int8Channel => [1, columns.max(1)],
        Quantization::Fp8Tensor | Quantization::Nvfp4 | Quantization::Mxfp4 => {
            [rows.max(1), columns.max(1)]
        }
    };
    let magnitudes = Mutex::new(None);
    let weight = Arc::new(Weight { source, how, matrix: [rows, columns], cell, magnitudes });
    let part = |suffix: &str, kind, dtype, shape: &[usize]| {
        let part =
            QuantizedPart { weight: Arc::clone(&weight), kind, dtype, shape: shape.to_vec() };
        (format!("{name}{suffix}"), part)
    };
    let (codes, scales) = (Kind::Codes, Kind::Scales);
    let whole = |dtype| part("", codes, dtype, &[rows, columns]);
    let packed = || part("_packed", codes, Dtype::U8, &[rows, columns / 2]);
    match how {
        Quantization::Fp8Block128 => {
            let grid = [rows.div_ceil(128), columns.div_ceil(128)];
            vec![whole(how.code()), part("_scale_inv", scales, Dtype::F32, &grid)]
        }
        Quantization::Fp8Channel | Quantization::Int8Channel => {
            vec![whole(how.code()), part("_scale", scales, Dtype::F32, &[rows, 1])]
        }
        Quantization::Fp8Tensor => {
            vec![whole(how.code()), part("_scale", scales, Dtype::F32, &[1])]
        }
        Quantization::Nvfp4 => vec![
            packed(),
            part("_scale", scales, Dtype::F8_E4M3, &[rows, columns / 16]),
            part("_global_scale", Kind::Global, Dtype::F32, &[1]),
        ],
        Quantization::Mxfp4 => {
            vec![packed(), part("_scale", scales, Dtype::U8, &[rows, columns / 32])]
        }
    }
}

impl<S> QuantizedPart<S> {
    /// The weight as F32.
    pub(crate) fn numbers(&self) -> &Converted<S> {
        &self.weight.source
    }
}

impl<S: TensorSource + Send> TensorSource for QuantizedPart<S> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let weight = &*self.weight;
        match (self.kind, weight.how) {
            (Kind::Codes, Quantization::Nvfp4) => {
                let global = weight.global_scale()?;
                weight.write_packed(sink, |group| {
                    nvfp4_scale(largest(group)?, global).map(|(_, scale)| scale / global)
                })
            }
            (Kind::Codes, Quantization::Mxfp4) => {
                weight.write_packed(sink, |group| largest(group).map(mxfp4_exponent).map(power))
            }
            (Kind::Codes, _) => weight.write_codes(sink),
            (Kind::Scales, Quantization::Nvfp4) => {
                let global = weight.global_scale()?;
                weight.write_groups(sink, |group| {
                    nvfp4_scale(largest(group)?, global).map(|(code, _)| code)
                })
            }
            (Kind::Scales, Quantization::Mxfp4) => {
                weight.write_groups(sink, |group| largest(group).map(mxfp4_exponent))
            }
            (Kind::Scales, _) => weight.scales()?.chunks(ELEMENTS).try_for_each(|scales| {
                let bytes: Vec<u8> = scales.iter().flat_map(|it| it.to_le_bytes()).collect();
                sink(&bytes)
            }),
            (Kind::Global, _) => sink(&weight.global_scale()?.to_le_bytes()),
        }
    }
}

impl<S: TensorSource> Weight<S> {
    /// Passes on the numbers in pieces of whole groups, each with the index of its first number.
    fn pieces(&self, mut take: impl FnMut(u64, &mut [f32]) -> Result<()>) -> Result<()> {
        let count = self.matrix[0] as u64 * self.matrix[1] as u64;
        let mut numbers = vec![0.0_f32; count.min(ELEMENTS as u64) as usize];
        let (mut filled, mut first) = (0, 0);
        write_exactly(&self.source, count * 4, &mut |mut bytes| {
            while !bytes.is_empty() {
                let room = &mut bytemuck::cast_slice_mut::<_, u8>(&mut numbers)[filled..];
                let (now, rest) = bytes.split_at(bytes.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                (filled, bytes) = (filled + now.len(), rest);
                let whole = (count - first).min(numbers.len() as u64) as usize;
                if filled == whole * 4 {
                    let piece = &mut numbers[..whole];
                    swap_on_big_endian(Dtype::F32, bytemuck::cast_slice_mut(piece));
                    take(first, piece)?;
                    (filled, first) = (0, first + whole as u64);
                }
            }
            Ok(())
        })
    }

    /// Calls `take` for each longest run of numbers of one cell: its place in a piece whose first
    /// number has the index `first`, and the number of the cell.
    fn runs(&self, first: u64, len: usize, mut take: impl FnMut(Range<usize>, usize)) {
        let [height, width] = self.cell;
        let columns = self.matrix[1];
        let mut done = 0;
        while done < len {
            let index = first + done as u64;
            let row = (index / columns as u64) as usize;
            let column = (index % columns as u64) as usize;
            let end = ((column / width + 1) * width).min(columns);
            let run = (end - column).min(len - done);
            take(done..done + run, row / height * columns.div_ceil(width) + column / width);
            done += run;
        }
    }

    /// The largest magnitude of each cell. The weight is read the first time.
    fn magnitudes(&self) -> Result<Arc<[f32]>> {
        let mut known = self.magnitudes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(magnitudes) = &*known {
            return Ok(Arc::clone(magnitudes));
        }
        let cells = self.matrix[0].div_ceil(self.cell[0]) * self.matrix[1].div_ceil(self.cell[1]);
        // One scale is there even for a weight without elements.
        let is_one = matches!(self.how, Quantization::Fp8Tensor | Quantization::Nvfp4);
        let mut magnitudes = vec![0.0_f32; cells.max(usize::from(is_one))];
        self.pieces(|first, numbers| {
            let mut wrong = None;
            self.runs(first, numbers.len(), |run, cell| {
                let bits = magnitude_bits(&numbers[run.clone()]);
                if bits >= INFINITY {
                    wrong.get_or_insert(run.start);
                }
                // Magnitudes are in the order of their bits.
                magnitudes[cell] = f32::from_bits(magnitudes[cell].to_bits().max(bits));
            });
            wrong.map_or(Ok(()), |start| Err(self.refuse(first, numbers, start)))
        })?;
        Ok(Arc::clone(known.insert(magnitudes.into())))
    }

    /// The error of the first NaN or infinity from `start` on.
    fn refuse(&self, first: u64, numbers: &[f32], start: usize) -> crate::error::Error {
        let found = numbers[start..].iter().position(|number| !number.is_finite());
        let position = start + found.unwrap_or(0);
        let (index, value) = (first + position as u64, format!("{:?}", numbers[position]));
        ErrorKind::DoesNotFit { index, value, to: self.how.code() }.into()
    }

    /// The scale of each cell.
    fn scales(&self) -> Result<Vec<f32>> {
        let largest = match self.how {
            Quantization::Int8Channel => 127.5,
            _ => LARGEST_E4M3,
        };
        let scale = |&magnitude: &f32| match magnitude / largest {
            0.0 => f32::EPSILON,
            scale => scale,
        };
        Ok(self.magnitudes()?.iter().map(scale).collect())
    }

    /// The scale that brings the scales of all groups into the range of F8_E4M3.
    fn global_scale(&self) -> Result<f32> {
        let magnitude = self.magnitudes()?[0].max(f32::MIN_POSITIVE);
        let scale = LARGEST_E4M3 * LARGEST_E2M1 / magnitude;
        Ok(if scale.is_finite() { scale } else { 1.0 })
    }

    /// Writes codes of eight bits.
    fn write_codes(&self, sink: &mut Sink<'_>) -> Result<()> {
        let scales = self.scales()?;
        let mut codes = vec![0; ELEMENTS];
        self.pieces(|first, numbers| {
            self.runs(first, numbers.len(), |run, cell| {
                let scale = scales[cell];
                numbers[run].iter_mut().for_each(|number| *number /= scale);
            });
            let codes = &mut codes[..numbers.len()];
            if self.how == Quantization::Int8Channel {
                for (code, number) in codes.iter_mut().zip(&*numbers) {
                    *code = number.clamp(-128.0, 127.0).round_ties_even() as i8 as u8;
                }
            } else {
                to_e4m3(numbers, codes)?;
            }
            sink(codes)
        })
    }

    /// Writes codes of four bits, the first of two in the low bits. `scale` says what the numbers
    /// of a group are divided by.
    fn write_packed(
        &self,
        sink: &mut Sink<'_>,
        scale: impl Fn(&[f32]) -> Result<f32, Infinite>,
    ) -> Result<()> {
        let size = self.how.group();
        let mut packed = vec![0; ELEMENTS / 2];
        self.pieces(|first, numbers| {
            let packed = &mut packed[..numbers.len() / 2];
            for (group, out) in numbers.chunks(size).zip(packed.chunks_mut(size / 2)) {
                let Ok(scale) = scale(group) else { return Err(self.refuse(first, numbers, 0)) };
                let (pairs, _) = group.as_chunks::<2>();
                for (&[low, high], out) in pairs.iter().zip(out) {
                    *out = to_e2m1(low / scale) | to_e2m1(high / scale) << 4;
                }
            }
            sink(packed)
        })
    }

    /// Writes a byte for each group.
    fn write_groups(
        &self,
        sink: &mut Sink<'_>,
        scale: impl Fn(&[f32]) -> Result<u8, Infinite>,
    ) -> Result<()> {
        let size = self.how.group();
        self.pieces(|first, numbers| {
            let scales: Result<Vec<u8>, _> = numbers.chunks(size).map(&scale).collect();
            let Ok(scales) = scales else { return Err(self.refuse(first, numbers, 0)) };
            sink(&scales)
        })
    }
}

/// A group has NaN or an infinity.
struct Infinite;

/// The bits of infinity; those of NaN without its sign are larger.
const INFINITY: u32 = f32::INFINITY.to_bits();

/// The bits of the largest magnitude.
fn magnitude_bits(numbers: &[f32]) -> u32 {
    numbers.iter().fold(0, |most, number| most.max(number.to_bits() & 0x7fff_ffff))
}

/// The largest magnitude of a group.
fn largest(group: &[f32]) -> Result<f32, Infinite> {
    let bits = magnitude_bits(group);
    if bits < INFINITY { Ok(f32::from_bits(bits)) } else { Err(Infinite) }
}

/// The code of the scale of a group, and the scale itself.
fn nvfp4_scale(magnitude: f32, global: f32) -> Result<(u8, f32), Infinite> {
    let (mut code, scale) = ([0], global * (magnitude / LARGEST_E2M1));
    to_e4m3(&mut [scale], &mut code).map_err(|_| Infinite)?;
    // 0.125, so that nothing is divided by zero.
    let code = if code[0] == 0 { 0x20 } else { code[0] };
    // A scale is not negative, and not NaN. The exponent's offset is 7, and 2^-9 is the smallest.
    let (exponent, digits) = (i32::from(code >> 3), f32::from(code & 7));
    let value = match exponent {
        0 => digits * (1.0 / 512.0),
        _ => (8.0 + digits) * power((exponent - 10 + 127) as u8),
    };
    Ok((code, value))
}

/// The code of the power of two that brings a group into the range of E2M1. The magnitude is first
/// rounded to one binary digit after the point.
fn mxfp4_exponent(magnitude: f32) -> u8 {
    let rounded = magnitude.to_bits() + (1 << 21);
    (rounded >> 23).saturating_sub(2).min(254) as u8
}

/// 2^(code − 127).
fn power(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// The codes of numbers in F8_E4M3. A number that is too large becomes the largest.
fn to_e4m3(numbers: &mut [f32], codes: &mut [u8]) -> Result<()> {
    let options = ConvertOptions::new().overflow(Overflow::Saturate);
    let conversion = Conversion::new(Dtype::F32, Dtype::F8_E4M3, &options)?;
    Ok(conversion.run(bytemuck::cast_slice(numbers), codes, 0)?)
}

/// The code of a number in E2M1. A number that is too large becomes the largest.
#[inline(always)]
fn to_e2m1(number: f32) -> u8 {
    let sign = (number.to_bits() >> 28) as u8 & 8;
    let magnitude = number.abs();
    // Halfway between two numbers, the one whose code is even.
    let passed = u8::from(magnitude > 0.25)
        + u8::from(magnitude >= 0.75)
        + u8::from(magnitude > 1.25)
        + u8::from(magnitude >= 1.75)
        + u8::from(magnitude > 2.5)
        + u8::from(magnitude >= 3.5)
        + u8::from(magnitude > 5.0);
    sign | passed
}

#[cfg(test)]
mod tests {
    use super::super::super::codes::{Codes, Order};
    use super::*;

    #[test]
    fn codes_of_four_bits_are_the_nearest() {
        let codes = Codes::of_dtype(Dtype::F4, Order::LowFirst).unwrap();
        for code in 0..16 {
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
    fn scales_of_groups_are_what_their_codes_say() {
        let codes = Codes::of_dtype(Dtype::F8_E4M3, Order::LowFirst).unwrap();
        for code in 1..0x7f {
            let number = codes.value(code);
            let Ok((found, value)) = nvfp4_scale(number * LARGEST_E2M1, 1.0) else {
                unreachable!()
            };
            assert_eq!((u32::from(found), value), (code, number));
        }
        assert!(matches!(nvfp4_scale(0.0, 1.0), Ok((0x20, 0.125))));
        assert!(matches!(nvfp4_scale(1e9, 1.0), Ok((0x7e, 448.0))));
        for (magnitude, exponent) in
            [(0.0, 0), (4.0, 127), (6.9, 127), (7.0, 128), (1e-38, 0), (f32::MAX, 253)]
        {
            assert_eq!(mxfp4_exponent(magnitude), exponent, "{magnitude}");
        }
        assert_eq!((power(0), power(127), power(125)), (2_f32.powi(-127), 1.0, 0.25));
    }
}
