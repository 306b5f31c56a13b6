//! [`QuantizedPart`]: codes or scales, made while they are written.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::error::Measured;
use super::fused::Fused;
use super::numbers::{ELEMENTS, pieces};
use super::rounding::{
    E2M1, LARGEST_E2M1, LARGEST_E4M3, largest, mxfp4_scales, nvfp4_scales, round_to_e4m3,
    round_to_i8, to_e2m1,
};
use super::{Quantization, QuantizationError};
use crate::format::convert::Converted;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::parallel::lock;
use crate::format::tensor::{Sink, TensorSource};

#[derive(Debug)]
pub(crate) struct QuantizedPart<S> {
    weight: Arc<Weight<S>>,
    kind: Kind,
    dtype: Dtype,
    shape: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Codes,
    Scales,
    Global,
}

#[derive(Debug)]
struct Weight<S> {
    source: Converted<S>,
    how: Quantization,
    matrix: [usize; 2],
    /// The rows and columns that share a magnitude, and the number of such cells.
    cell: [usize; 2],
    cells: usize,
    magnitudes: Mutex<Option<Arc<[f32]>>>,
    /// The weights, this one among them, that share their largest magnitude.
    fused: Option<Arc<Fused<S>>>,
    error: Mutex<Option<QuantizationError>>,
}

pub(super) fn parts<S: TensorSource + Send>(
    how: Quantization,
    name: &str,
    source: Converted<S>,
    [rows, columns]: [usize; 2],
    fused: Option<Arc<Fused<S>>>,
) -> Vec<(String, QuantizedPart<S>)> {
    let grid = [rows.div_ceil(128), columns.div_ceil(128)];
    // A weight without elements has scales, too.
    let (cell, cells) = match how {
        Quantization::Fp8Block128 => ([128, 128], grid[0] * grid[1]),
        Quantization::Fp8Channel | Quantization::Int8Channel => ([1, columns.max(1)], rows),
        Quantization::Fp8Tensor | Quantization::Nvfp4 | Quantization::Mxfp4 => {
            ([rows.max(1), columns.max(1)], 1)
        }
    };
    let (magnitudes, error) = Default::default();
    let matrix = [rows, columns];
    let weight = Arc::new(Weight { source, how, matrix, cell, cells, magnitudes, fused, error });
    let part = |suffix: &str, kind, dtype, shape: &[usize]| {
        let weight = Arc::clone(&weight);
        (format!("{name}{suffix}"), QuantizedPart { weight, kind, dtype, shape: shape.to_vec() })
    };
    let codes = Kind::Codes;
    let scales = Kind::Scales;
    let whole = || part("", codes, how.code(), &[rows, columns]);
    let packed = || part("_packed", codes, Dtype::U8, &[rows, columns / 2]);
    match how {
        Quantization::Fp8Block128 => {
            vec![whole(), part("_scale_inv", scales, Dtype::F32, &grid)]
        }
        Quantization::Fp8Channel | Quantization::Int8Channel => {
            vec![whole(), part("_scale", scales, Dtype::F32, &[rows, 1])]
        }
        Quantization::Fp8Tensor => vec![whole(), part("_scale", scales, Dtype::F32, &[1])],
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
    pub(crate) fn is_codes(&self) -> bool {
        self.kind == Kind::Codes
    }

    pub(crate) fn error(&self) -> Option<QuantizationError> {
        if self.is_codes() { *lock(&self.weight.error) } else { None }
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
        match self.kind {
            Kind::Codes => weight.write_codes(sink),
            Kind::Global => sink(&weight.global_scale()?.to_le_bytes()),
            Kind::Scales if weight.how.group() > 1 => {
                let global = weight.global_scale()?;
                weight.pieces(&mut |_, numbers| sink(&weight.scales_of_groups(numbers, global)?.0))
            }
            Kind::Scales => weight.scales()?.chunks(ELEMENTS).try_for_each(|scales| {
                let bytes: Vec<u8> = scales.iter().flat_map(|it| it.to_le_bytes()).collect();
                sink(&bytes)
            }),
        }
    }
}

impl<S: TensorSource> Weight<S> {
    fn pieces(&self, take: &mut dyn FnMut(u64, &[f32]) -> Result<()>) -> Result<()> {
        pieces(&self.source, self.how, take)
    }

    /// Calls `take` for each run in a cell: its place in the piece that begins with the number of
    /// index `first`, and the cell.
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

    /// Returns the largest magnitude of each cell. Reads the weight the first time.
    fn magnitudes(&self) -> Result<Arc<[f32]>> {
        let mut known = lock(&self.magnitudes);
        if let Some(magnitudes) = known.take() {
            // Magnitudes of many cells take memory; only the codes and one tensor of scales need
            // them.
            if magnitudes.len() == 1 {
                *known = Some(Arc::clone(&magnitudes));
            }
            return Ok(magnitudes);
        }
        let mut magnitudes = vec![0.0_f32; self.cells];
        self.pieces(&mut |first, numbers| {
            self.runs(first, numbers.len(), |run, cell| {
                magnitudes[cell] = magnitudes[cell].max(largest(&numbers[run]));
            });
            Ok(())
        })?;
        Ok(Arc::clone(known.insert(magnitudes.into())))
    }

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

    /// Brings the scales of all groups into the range of F8_E4M3; 1 where they need none.
    fn global_scale(&self) -> Result<f32> {
        if self.how != Quantization::Nvfp4 {
            return Ok(1.0);
        }
        let magnitude = match &self.fused {
            Some(fused) => fused.largest()?,
            None => self.magnitudes()?[0],
        };
        let scale = LARGEST_E4M3 * LARGEST_E2M1 / magnitude.max(f32::MIN_POSITIVE);
        Ok(if scale.is_finite() { scale } else { 1.0 })
    }

    fn scales_of_groups(&self, numbers: &[f32], global: f32) -> Result<(Vec<u8>, Vec<f32>)> {
        let mut scales: Vec<_> = numbers.chunks(self.how.group()).map(largest).collect();
        if self.how == Quantization::Mxfp4 {
            return Ok((mxfp4_scales(&mut scales), scales));
        }
        let codes = nvfp4_scales(global, &mut scales)?;
        scales.iter_mut().for_each(|scale| *scale /= global);
        Ok((codes, scales))
    }

    fn write_codes(&self, sink: &mut Sink<'_>) -> Result<()> {
        let is_packed = self.how.group() > 1;
        let (scales, global) =
            if is_packed { (Vec::new(), self.global_scale()?) } else { (self.scales()?, 1.0) };
        let mut codes = Vec::new();
        let mut decoded = Vec::new();
        let mut measured = Measured::default();
        self.pieces(&mut |first, numbers| {
            decoded.resize(numbers.len(), 0.0);
            if is_packed {
                let (_, scales) = self.scales_of_groups(numbers, global)?;
                codes.resize(numbers.len() / 2, 0);
                self.encode_groups(numbers, &scales, &mut codes, &mut decoded);
            } else {
                codes.resize(numbers.len(), 0);
                self.encode_cells((first, numbers), &scales, &mut codes, &mut decoded)?;
            }
            measured.add(numbers, &decoded);
            sink(&codes)
        })?;
        *lock(&self.error) = Some(measured.error());
        Ok(())
    }

    fn encode_cells(
        &self,
        (first, numbers): (u64, &[f32]),
        scales: &[f32],
        codes: &mut [u8],
        decoded: &mut [f32],
    ) -> Result<()> {
        self.runs(first, numbers.len(), |run, cell| {
            for (scaled, number) in decoded[run.clone()].iter_mut().zip(&numbers[run]) {
                *scaled = number / scales[cell];
            }
        });
        if self.how == Quantization::Int8Channel {
            round_to_i8(decoded, codes);
        } else {
            round_to_e4m3(decoded, codes)?;
        }
        self.runs(first, numbers.len(), |run, cell| {
            decoded[run].iter_mut().for_each(|code| *code *= scales[cell]);
        });
        Ok(())
    }

    /// Makes codes of four bits, the first of two in the low bits, and their numbers.
    fn encode_groups(
        &self,
        numbers: &[f32],
        scales: &[f32],
        codes: &mut [u8],
        decoded: &mut [f32],
    ) {
        let size = self.how.group();
        let groups = numbers.chunks(size).zip(decoded.chunks_mut(size));
        for ((group, codes), scale) in groups.zip(codes.chunks_mut(size / 2)).zip(scales) {
            let (numbers, decoded) = group;
            let (pairs, _) = numbers.as_chunks::<2>();
            let (decoded, _) = decoded.as_chunks_mut::<2>();
            for ((pair, decoded), out) in pairs.iter().zip(decoded).zip(codes) {
                let [low, high] = pair.map(|number| to_e2m1(number / scale));
                *out = low | high << 4;
                *decoded = [low, high].map(|code| E2M1[usize::from(code)] * scale);
            }
        }
    }
}
