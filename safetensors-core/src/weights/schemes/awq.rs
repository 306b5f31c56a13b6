//! AWQ: integers of 4 bits, eight columns in a word, in a special order.
//!
//! W`[o, i]` = (q`[i, o]` − z`[g, o]`) · s`[g, o]`, as autoawq's `dequantize_gemm` computes it.

use super::super::codes::{Codes, Order};
use super::super::matrix::Matrix;
use super::super::model::{Candidate, Weight};
use super::super::weight::{Grid, Grouped};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(module) = tensor.name.strip_suffix(".qweight") else { return Ok(None) };
    if tensor.dtype != Dtype::I32 || tensor.shape.len() != 2 {
        return Ok(None);
    }
    let scales = candidate.need(&format!("{module}.scales"))?;
    let ([inputs, words], [groups, outputs]) = (tensor.matrix(), scales.matrix());
    if words * 8 != outputs {
        return Ok(None);
    }
    let version = model.config.text("version");
    if let Some(version) = version.filter(|version| !version.eq_ignore_ascii_case("gemm")) {
        return Err(candidate.unsupported(format!("version {version}")));
    }
    if let Some(bits) = model.config.number("bits").filter(|bits| *bits != 4) {
        return Err(candidate.mismatch(tensor, format_args!("codes of {bits} bits"), "4 bits"));
    }
    let zeros = candidate.need(&format!("{module}.qzeros"))?;
    candidate.check_dtype(zeros, &[Dtype::I32])?;
    candidate.check_shape(zeros, &[groups, words])?;
    candidate.check_numbers(scales)?;
    if groups == 0 || inputs % groups != 0 {
        let expected = format!("a number of groups that divides {inputs} inputs");
        return Err(candidate.mismatch(scales, expected, groups));
    }
    candidate.check_group_size(scales, model.config.number("group_size"), [inputs, groups])?;
    let codes = Codes::unsigned(4, Order::Awq, 0);
    let grids =
        [Matrix::rows(scales, scales.dtype, outputs), Matrix::rows(zeros, codes.clone(), outputs)];
    let [factors, shifts] = grids
        .map(|matrix| Grid::new(matrix.transposed(groups), outputs, outputs, [1, inputs / groups]));
    let codes = Matrix::rows(tensor, codes, outputs).transposed(inputs);
    let numbers = Grouped::new(codes, inputs).scaled(factors).zeroed(Some(shifts));
    let tensors = [tensor, zeros, scales];
    Ok(Some(candidate.weight(format!("{module}.weight"), &[outputs, inputs], &tensors, numbers)))
}
