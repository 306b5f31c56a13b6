//! ComfyUI's formats, which mark each module in the file.
//! The mark is `X.comfy_quant`, or the entry `_quantization_metadata` of the metadata. Weights with
//! a mark may have the names of ModelOpt's, but other bits: NVFP4 has the high half of a byte
//! first, and scales in tiles.

use serde_json::Value;

use super::super::codes::Order;
use super::super::matrix::{Lies, Matrix, Numbers, Stored};
use super::super::model::{Candidate, Weight};
use super::super::weight::{Combine, Grid, Grouped, Scales};
use super::companions::comfy_mark;
use super::scales::FLOATS;
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
    let Some(mark) = comfy_mark(model, module) else { return Ok(None) };
    let format = mark.get("format").and_then(Value::as_str).unwrap_or_default();
    let scales = candidate.need(&format!("{module}.weight_scale"))?;
    let mut tensors = vec![tensor, scales];
    let (shape, numbers) = match format {
        "float8_e4m3fn" | "float8_e5m2" | "int8_tensorwise" => {
            let dtypes = &[Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8];
            candidate.check_dtype(tensor, dtypes)?;
            if mark.get("convrot").is_some_and(|rotated| rotated.as_bool() != Some(false)) {
                return Err(candidate.unsupported("rotated weights"));
            }
            candidate.check_dtype(scales, &FLOATS)?;
            let factors = candidate.grid(&tensor.shape, scales, scales.dtype)?;
            (tensor.shape.clone(), Grouped::plain(tensor).scaled(factors))
        }
        "nvfp4" => {
            let second = candidate.need(&format!("{module}.weight_scale_2"))?;
            tensors.push(second);
            candidate.check_dtype(tensor, &[Dtype::U8])?;
            candidate.check_dtype(scales, &[Dtype::F8_E4M3, Dtype::U8])?;
            let [rows, packed] = dims(candidate)?;
            let shape = vec![rows, packed * 2];
            let first = tiles(candidate, scales, &shape, (Dtype::F8_E4M3, 16))?;
            let second = candidate.grid(&shape, second, second.dtype)?;
            let codes = Numbers::new(Dtype::F4, Order::HighFirst);
            let codes = Grouped::new(Matrix::rows(tensor, codes, shape[1]), shape[1]);
            let second = Some((Combine::Multiply, second));
            (shape, codes.scaled(Scales { first, second }))
        }
        "mxfp8" => {
            candidate.check_dtype(tensor, &[Dtype::F8_E4M3])?;
            candidate.check_dtype(scales, &[Dtype::F8_E8M0, Dtype::U8])?;
            let [rows, columns] = dims(candidate)?;
            let factors = tiles(candidate, scales, &[rows, columns], (Dtype::F8_E8M0, 32))?;
            (tensor.shape.clone(), Grouped::plain(tensor).scaled(factors))
        }
        other => return Err(candidate.unsupported(format!("the format {other}"))),
    };
    Ok(Some(candidate.weight(&tensor.name, &shape, &tensors, numbers)))
}

fn dims(candidate: &Candidate<'_>) -> Result<[usize; 2]> {
    let tensor = candidate.tensor;
    match *tensor.shape {
        [rows, columns] => Ok([rows, columns]),
        _ => Err(candidate.mismatch(tensor, "two dimensions", Shape(&tensor.shape))),
    }
}

fn tiles(
    candidate: &Candidate<'_>,
    scales: &Stored,
    shape: &[usize],
    (dtype, size): (Dtype, usize),
) -> Result<Grid> {
    let rows = shape[0];
    let groups = shape[1].div_ceil(size);
    candidate.check_len(scales, [rows.next_multiple_of(128), groups.next_multiple_of(4)])?;
    let mut numbers = Numbers::from(dtype);
    if dtype == Dtype::F8_E8M0 {
        // ComfyUI reads the smallest power of two as 0.
        numbers = numbers.with(0, 0.0);
    }
    let matrix = Matrix::new(scales, numbers, Lies::Tiles, groups);
    Ok(Grid::new(matrix, rows, rows, [1, size]))
}
