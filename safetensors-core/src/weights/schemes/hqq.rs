//! HQQ: integers of 1, 2, 3, 4 and 8 bits. A word holds codes of rows that are far apart.
//!
//! W = (q − zero) · scale. The matrix of q has a group in each row (axis 1) or column (axis 0).

use super::super::codes::{Codes, Order};
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{
    Model, Weight, check_bytes, check_len, check_numbers, count, mismatch, unsupported, weight,
};
use super::super::weight::{Grid, Grouped};
use crate::format::error::Result;

const NAME: &str = "HQQ";

/// The tensors that describe how a weight is stored. All of them may be there.
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

pub(super) fn find(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    let Some(module) = tensor.name.strip_suffix(".W_q") else { return Ok(None) };
    let is_described = ["scale", "zero", "nbits", "axis"]
        .iter()
        .any(|end| model.get(&format!("{module}.{end}")).is_some());
    if !is_described && model.config.method.is_none() {
        return Ok(None);
    }
    let need = |end: &str| model.need(NAME, tensor, &format!("{module}.{end}"));
    let scales = need("scale")?;
    let zeros = need("zero")?;
    let bits = need("nbits")?;
    let axis = need("axis")?;
    let of_shape = need("shape")?;
    let integer = |tensor: &Stored| {
        let number = model.values::<i64>(&tensor.name).and_then(|numbers| numbers.first().copied());
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| mismatch(NAME, tensor, "a whole number", "none"))
    };
    let shape = model.dims(&of_shape.name);
    let len = count(tensor, &shape)?;
    let groups = scales.len();
    check_len(NAME, zeros, [groups, 1])?;
    check_numbers(NAME, scales)?;
    check_numbers(NAME, zeros)?;
    if groups == 0 || !len.is_multiple_of(groups) {
        let expected = format!("a number of groups that divides {len} elements");
        return Err(mismatch(NAME, scales, expected, groups));
    }
    let is_of_columns = match integer(axis)? {
        0 => true,
        1 => false,
        other => return Err(mismatch(NAME, axis, "0 or 1", other)),
    };
    let size = len / groups;
    let (rows, columns) = if is_of_columns { (size, groups) } else { (groups, size) };
    let (bits, word) = match integer(bits)? {
        bits @ (1 | 2 | 4 | 8) => (bits, 1),
        3 => (3, 4),
        other => return Err(unsupported("HQQ", format!("{other} bits"))),
    };
    let apart = rows.div_ceil(word * 8 / bits);
    check_bytes(NAME, tensor, [apart, columns, word])?;
    let codes = Codes::unsigned(bits, Order::LowFirst, 0);
    let lies = Lies::Planes { word, apart: apart.max(1), high_first: true };
    let codes = Matrix::new(tensor, codes, lies, columns);
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
    Ok(Some(weight(NAME, format!("{module}.weight"), &shape, &tensors, numbers)))
}
