//! AWQ: integers of 4 bits, eight columns in a word, in a special order.
//!
//! W`[o, i]` = (q`[i, o]` − z`[g, o]`) · s`[g, o]`, as autoawq's `dequantize_gemm` computes it.

use super::super::codes::{Codes, Order};
use super::super::matrix::{Matrix, Stored};
use super::super::model::{
    Model, Weight, check_dtype, check_numbers, check_shape, mismatch, unsupported, weight,
};
use super::super::weight::{Grid, Grouped};
use super::scales::check_group_size;
use crate::format::dtype::Dtype;
use crate::format::error::Result;

const NAME: &str = "AWQ";

pub(super) fn find(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    let Some(module) = tensor.name.strip_suffix(".qweight") else { return Ok(None) };
    if tensor.dtype != Dtype::I32 || tensor.shape.len() != 2 {
        return Ok(None);
    }
    let scales = model.need(NAME, tensor, &format!("{module}.scales"))?;
    let ([inputs, words], [groups, outputs]) = (tensor.matrix(), scales.matrix());
    if words * 8 != outputs {
        return Ok(None);
    }
    let version = model.config.text("version");
    if let Some(version) = version.filter(|version| !version.eq_ignore_ascii_case("gemm")) {
        return Err(unsupported("AWQ", format!("version {version}")).in_tensor(&tensor.name));
    }
    if let Some(bits) = model.config.number("bits").filter(|bits| *bits != 4) {
        return Err(mismatch(NAME, tensor, format_args!("codes of {bits} bits"), "4 bits"));
    }
    let zeros = model.need(NAME, tensor, &format!("{module}.qzeros"))?;
    check_dtype(NAME, zeros, &[Dtype::I32])?;
    check_shape(NAME, zeros, &[groups, words])?;
    check_numbers(NAME, scales)?;
    if groups == 0 || inputs % groups != 0 {
        let expected = format!("a number of groups that divides {inputs} inputs");
        return Err(mismatch(NAME, scales, expected, groups));
    }
    check_group_size(NAME, scales, model.config.number("group_size"), [inputs, groups])?;
    let codes = Codes::unsigned(4, Order::Awq, 0);
    let grids =
        [Matrix::rows(scales, scales.dtype, outputs), Matrix::rows(zeros, codes.clone(), outputs)];
    let [factors, shifts] = grids
        .map(|matrix| Grid::new(matrix.transposed(groups), outputs, outputs, [1, inputs / groups]));
    let codes = Matrix::rows(tensor, codes, outputs).transposed(inputs);
    let numbers = Grouped::new(codes, inputs).scaled(factors).zeroed(Some(shifts));
    let tensors = [tensor, zeros, scales];
    Ok(Some(weight(NAME, format!("{module}.weight"), &[outputs, inputs], &tensors, numbers)))
}
