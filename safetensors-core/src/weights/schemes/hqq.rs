//! HQQ: integers of 1, 2, 3, 4 and 8 bits. A word holds codes of rows that are far apart.
//!
//! W = (q − zero) · scale. The matrix of q has a group in each row (axis 1) or column (axis 0).

use super::super::codes::{Codes, Order};
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Weight};
use super::super::weight::{Grid, Grouped};
use crate::format::error::Result;

const OTHERS: &[&str] = &[
    "nbits",
    "group_size",
    "axis",
    "shape",
    "packing",
    "view_as_float",
    "unpack_view_dtype",
    "compute_dtype",
    "channel_wise",
    "quant_scale",
    "quant_zero",
    "round_zero",
    "optimize",
    "encoded_state_dict",
    "stores_quant_config",
    "offload_meta",
];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(module) = tensor.name.strip_suffix(".W_q") else { return Ok(None) };
    let is_described = ["scale", "zero", "nbits", "axis"]
        .iter()
        .any(|end| model.get(&format!("{module}.{end}")).is_some());
    if !is_described && model.config.method.is_none() {
        return Ok(None);
    }
    let need = |end: &str| candidate.need(&format!("{module}.{end}"));
    let scales = need("scale")?;
    let zeros = need("zero")?;
    let bits = need("nbits")?;
    let axis = need("axis")?;
    let of_shape = need("shape")?;
    let shape = model.dims(&of_shape.name);
    let len = candidate.count(&shape)?;
    let groups = scales.len();
    candidate.check_len(zeros, [groups, 1])?;
    candidate.check_numbers(scales)?;
    candidate.check_numbers(zeros)?;
    if groups == 0 || !len.is_multiple_of(groups) {
        let expected = format!("a number of groups that divides {len} elements");
        return Err(candidate.mismatch(scales, expected, groups));
    }
    let is_of_columns = match integer(candidate, axis)? {
        0 => true,
        1 => false,
        other => return Err(candidate.mismatch(axis, "0 or 1", other)),
    };
    let size = len / groups;
    let (rows, columns) = if is_of_columns { (size, groups) } else { (groups, size) };
    let codes = codes(candidate, integer(candidate, bits)?, [rows, columns])?;
    let grid = |tensor: &Stored| {
        if is_of_columns {
            Grid::new(Matrix::rows(tensor, tensor.dtype, columns), rows, 1, [rows, 1])
        } else {
            Grid::new(Matrix::rows(tensor, tensor.dtype, 1), rows, rows, [1, columns])
        }
    };
    let numbers = Grouped::new(codes, columns).scaled(grid(scales)).zeroed(Some(grid(zeros)));
    let others = OTHERS.iter().filter_map(|end| model.get(&format!("{module}.{end}")));
    let tensors: Vec<_> = [tensor, scales, zeros].into_iter().chain(others).collect();
    Ok(Some(candidate.weight(format!("{module}.weight"), &shape, &tensors, numbers)))
}

fn codes(candidate: &Candidate<'_>, bits: usize, [rows, columns]: [usize; 2]) -> Result<Matrix> {
    let word = match bits {
        1 | 2 | 4 | 8 => 1,
        3 => 4,
        other => return Err(candidate.unsupported(format!("{other} bits"))),
    };
    let apart = rows.div_ceil(word * 8 / bits);
    candidate.check_bytes([apart, columns, word])?;
    let codes = Codes::unsigned(bits, Order::LowFirst, 0);
    let lies = Lies::Planes { word, apart: apart.max(1), high_first: true };
    Ok(Matrix::new(candidate.tensor, codes, lies, columns))
}

fn integer(candidate: &Candidate<'_>, note: &Stored) -> Result<usize> {
    let numbers = candidate.model.values::<i64>(&note.name).unwrap_or_default();
    let number = numbers.first().and_then(|&number| usize::try_from(number).ok());
    number.ok_or_else(|| candidate.mismatch(note, "a whole number", "none"))
}
