//! bitsandbytes: NF4 and FP4 by a table of 16 numbers, and INT8.
//!
//! 4 bits: W = table`[code]` · absmax of its block, in F32. 8 bits: W = code · SCB · (1/127), in
//! this order, as `int8_vectorwise_dequant` computes it.

use serde_json::Value;

use super::super::codes::{Codes, Order};
use super::super::config::whole;
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Weight, unsupported};
use super::super::weight::{Formula, Grid, Grouped};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let name = &tensor.name;
    if let Some(state) = model.first(states(name)) {
        return of_four_bits(candidate, state).map(Some);
    }
    let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
    match model.get(&format!("{module}.SCB")) {
        Some(scales) if tensor.dtype == Dtype::I8 => {
            of_eight_bits(candidate, module, scales).map(Some)
        }
        _ => Ok(None),
    }
}

/// Returns the names that the description of a weight of 4 bits may have.
fn states(weight: &str) -> [String; 2] {
    ["nf4", "fp4"].map(|kind| format!("{weight}.quant_state.bitsandbytes__{kind}"))
}

/// A weight of 4 bits has one of them.
pub(super) fn companions(weight: &str) -> [String; 3] {
    let [nf4, fp4] = states(weight);
    [nf4, fp4, format!("{weight}.absmax")]
}

fn of_four_bits(candidate: &Candidate<'_>, state: &Stored) -> Result<Weight> {
    let Candidate { model, tensor, .. } = *candidate;
    let name = &tensor.name;
    let json = model.json(&state.name).unwrap_or_default();
    let number = |key: &str| {
        let number = json.get(key).and_then(whole).filter(|number| *number > 0);
        number.ok_or_else(|| candidate.mismatch(state, format_args!("a number {key:?}"), "none"))
    };
    let shape = json.get("shape").and_then(Value::as_array);
    let shape = shape.and_then(|dims| dims.iter().map(whole).collect::<Option<Vec<_>>>());
    let shape = shape.ok_or_else(|| candidate.mismatch(state, "a shape", "none"))?;
    let len = candidate.count(&shape)?;
    candidate.check_bytes([len.div_ceil(2), 1, 1])?;
    let size = number("blocksize")?;
    let absmax = candidate.need(&format!("{name}.absmax"))?;
    let table = candidate.need(&format!("{name}.quant_map"))?;
    candidate.check_len(absmax, [len.div_ceil(size), 1])?;
    let values = numbers_of(candidate, table, 16)?;
    let mut tensors = vec![tensor, absmax, table, state];
    let grid = if absmax.dtype == Dtype::U8 {
        let nested = candidate.need(&format!("{name}.nested_absmax"))?;
        let table = candidate.need(&format!("{name}.nested_quant_map"))?;
        let nested_size = number("nested_blocksize")?;
        candidate.check_dtype(nested, &[Dtype::F32])?;
        candidate.check_len(nested, [absmax.len().div_ceil(nested_size), 1])?;
        let offset = json.get("nested_offset").and_then(Value::as_f64);
        let offset = offset.ok_or_else(|| candidate.mismatch(state, "a nested_offset", "none"))?;
        let codes = Codes::new(8, Order::LowFirst, numbers_of(candidate, table, 256)?);
        let codes = Matrix::new(absmax, codes, Lies::Rows { bits: 0 }, absmax.len());
        let of_blocks = Matrix::rows(nested, Dtype::F32, nested.len());
        let of_blocks = Grid::new(of_blocks, 1, 1, [1, nested_size]);
        let mut numbers = Grouped::new(codes, absmax.len()).scaled(of_blocks);
        numbers.formula = Formula::AddConstant(offset as f32);
        tensors.extend([nested, table]);
        Grid::quantized(numbers, size)
    } else {
        candidate.check_dtype(absmax, &[Dtype::F32])?;
        let matrix = Matrix::rows(absmax, Dtype::F32, absmax.len());
        Grid::new(matrix, 1, 1, [1, size])
    };
    let codes = Codes::new(4, Order::HighFirst, values);
    let codes = Matrix::new(tensor, codes, Lies::Rows { bits: 0 }, len);
    Ok(candidate.weight(name, &shape, &tensors, Grouped::new(codes, len).scaled(grid)))
}

fn numbers_of(candidate: &Candidate<'_>, table: &Stored, len: usize) -> Result<Vec<f32>> {
    candidate.check_dtype(table, &[Dtype::F32])?;
    candidate.check_len(table, [len, 1])?;
    let values = candidate.model.values(&table.name);
    values.ok_or_else(|| candidate.mismatch(table, "a table", "none"))
}

fn of_eight_bits(candidate: &Candidate<'_>, module: &str, scales: &Stored) -> Result<Weight> {
    let Candidate { model, tensor, .. } = *candidate;
    let format = model.get(&format!("{module}.weight_format"));
    if let Some(format) = format {
        let kind = model.values::<i64>(&format.name).and_then(|kinds| kinds.first().copied());
        if kind != Some(0) {
            let reason = "a weight_format other than 0, which GPUs of one kind read";
            return Err(unsupported("bitsandbytes", reason).in_tensor(&format.name));
        }
    }
    candidate.check_dtype(scales, &[Dtype::F32])?;
    let scales = (scales, scales.dtype);
    let mut found = candidate.plain(&tensor.name, scales, None, None)?;
    found.tensors.extend(format.cloned());
    // The constant of the library's code, which is 1/127 rounded to F32.
    found.numbers.formula = Formula::Times(7.874_016e-3);
    Ok(found)
}
