//! Floats of 4 and 6 bits with scales of small groups: NVFP4, MXFP4 and MXFP6.
//! They are written by compressed-tensors, ModelOpt, Quark, and as experts of gpt-oss and
//! DeepSeek-V4.
//!
//! W = code · scale, with the scale of a group divided (compressed-tensors) or multiplied
//! (ModelOpt) by the scale of the weight first, in F32.

use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Model, Weight, ambiguous, unsupported};
use super::super::weight::{Combine, Grid, Grouped, Scales};
use super::companions::{comfy_mark, is_of_comfy};
use super::packed::scales_of_packed;
use super::scales::{FLOATS, is_of_all};
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

const EXPONENTS: [Dtype; 2] = [Dtype::U8, Dtype::F8_E8M0];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let tensor = candidate.tensor;
    if tensor.shape.len() < 2 {
        return Ok(None);
    }
    match tensor.dtype {
        Dtype::U8 => {
            if let Some(name) = tensor.name.strip_suffix("_packed") {
                let scales = scales_of_packed(candidate, name)?;
                let found = scales.map(|scales| compressed(candidate, scales, name));
                return found.transpose();
            }
            for (end, of_scales, is_transposed) in
                [("_blocks", "_scales", true), (".blocks", ".scales", false)]
            {
                let Some(name) = tensor.name.strip_suffix(end) else { continue };
                let scales = candidate.scales(&format!("{name}{of_scales}"))?;
                let found = scales.map(|scales| experts(candidate, scales, name, is_transposed));
                return found.transpose();
            }
            modelopt(candidate)
        }
        Dtype::F4 => modelopt(candidate),
        Dtype::I8 => deepseek(candidate),
        _ => Ok(None),
    }
}

/// Finds `W_scale_2`, which multiplies the scales of groups, or `W_weight_scale_2` of stacked
/// experts.
pub(super) fn second_scale<'m>(model: &'m Model<'_>, name: &str) -> Option<&'m Stored> {
    let of_experts = (!name.ends_with(".weight")).then(|| format!("{name}_weight_scale_2"));
    model.first([format!("{name}_scale_2")].into_iter().chain(of_experts))
}

/// Finds `W_packed`, `W_scale` and, for NVFP4, `W_global_scale`, where W may be `X.weight`.
fn compressed(candidate: &Candidate<'_>, scales: &Stored, name: &str) -> Result<Weight> {
    let global = candidate.model.get(&format!("{name}_global_scale"));
    let second = global.map(|global| (Combine::Divide, global));
    let mut found = of_groups(candidate, scales, second)?;
    found.name = name.to_owned();
    Ok(found)
}

/// Finds `W`, `W_scale` and, for NVFP4, `W_scale_2`; of stacked experts also `W_weight_scale` and
/// `W_weight_scale_2`.
fn modelopt(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let name = &tensor.name;
    let module = name.strip_suffix(".weight");
    let of_experts = module.is_none().then(|| format!("{name}_weight_scale"));
    let scales = model.first([format!("{name}_scale")].into_iter().chain(of_experts));
    let Some(scales) = scales else { return Ok(None) };
    let second = second_scale(model, name);
    let is_of_groups = second.is_some() || is_exponents(scales) && tensor.dtype == Dtype::U8;
    if !is_of_groups || module.is_some_and(|module| comfy_mark(model, module).is_some()) {
        return Ok(None);
    }
    if second.is_some() && tensor.dtype == Dtype::U8 {
        check_no_tiles(candidate, scales)?;
    }
    let second = second.map(|second| (Combine::Multiply, second));
    let found = of_groups(candidate, scales, second)?;
    let factors = model.get(&format!("{}.pre_quant_scale", module.unwrap_or(name)));
    candidate.times_columns(found, factors).map(Some)
}

/// Finds two codes in each I8 of `X.weight`, and `X.scale`.
fn deepseek(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
    let scales = model.get(&format!("{module}.scale")).filter(|scales| is_exponents(scales));
    scales.map(|scales| of_groups(candidate, scales, None)).transpose()
}

/// Makes groups of columns or, in stacked matrices as of ModelOpt, of rows.
fn of_groups(
    candidate: &Candidate<'_>,
    scales: &Stored,
    second: Option<(Combine, &Stored)>,
) -> Result<Weight> {
    let tensor = candidate.tensor;
    let [rows, packed] = tensor.matrix();
    let (dtype, columns) = codes(candidate, scales, second.is_some())?;
    let (scheme, size, of_scales) = match (second, dtype) {
        (Some(_), _) => ("nvfp4", 16, &[Dtype::F8_E4M3][..]),
        (None, Dtype::F6_E2M3) => ("mxfp6", 32, &EXPONENTS[..]),
        (None, _) => ("mxfp4", 32, &EXPONENTS[..]),
    };
    candidate.check_dtype(scales, of_scales)?;
    let numbers = candidate.numbers(scales)?;
    let lead = &tensor.shape[..tensor.shape.len() - 2];
    let is_down = lead.len() == 1
        && tensor.dtype == Dtype::U8
        && scales.shape == [lead, &[rows * 2 / size, packed]].concat()
        && (rows * 2).is_multiple_of(size);
    let (matrix, codes, first) = if is_down {
        let rows = rows * 2;
        let codes = Matrix::new(tensor, dtype, Lies::Down { word: 8 }, packed);
        let first = Matrix::rows(scales, numbers, packed);
        ([rows, packed], codes, Grid::new(first, rows, rows / size, [size, 1]))
    } else {
        if !columns.is_multiple_of(size) {
            let expected = format!("rows of whole groups of {size} codes");
            return Err(candidate.mismatch(tensor, expected, format_args!("{columns} codes")));
        }
        let groups = columns / size;
        candidate.check_shape(scales, &[lead, &[rows, groups]].concat())?;
        let first = Grid::new(Matrix::rows(scales, numbers, groups), rows, rows, [1, size]);
        ([rows, columns], Matrix::rows(tensor, dtype, columns), first)
    };
    let shape = [lead, &matrix].concat();
    let others = second.map(|(_, scale)| scale);
    let tensors: Vec<_> = [tensor, scales].into_iter().chain(others).collect();
    let second = match second {
        None => None,
        Some((combine, scale)) => Some((combine, of_matrices(candidate, scale, &shape, is_down)?)),
    };
    let codes = Grouped::new(codes, matrix[1]).scaled(Scales { first, second });
    Ok(Candidate { scheme, ..*candidate }.weight(&tensor.name, &shape, &tensors, codes))
}

fn codes(candidate: &Candidate<'_>, scales: &Stored, has_second: bool) -> Result<(Dtype, usize)> {
    let Candidate { model, tensor, .. } = *candidate;
    let [_, packed] = tensor.matrix();
    let [_, groups] = scales.matrix();
    // Codes of six bits are three quarters of their number in bytes.
    let is_six = !has_second && groups * 24 == packed && tensor.dtype != Dtype::F4;
    if is_six && model.config.method.as_deref() == Some("quark") {
        // Other bits come first, and the dtype may be F6_E3M2.
        return Err(unsupported("Quark", "floats of 6 bits").in_tensor(&tensor.name));
    }
    Ok(match (is_six, tensor.dtype) {
        (true, _) => (Dtype::F6_E2M3, groups * 32),
        (false, Dtype::F4) => (Dtype::F4, packed),
        (false, _) => (Dtype::F4, packed * 2),
    })
}

/// Accepts separate scales for the halves of `w13`.
fn of_matrices(
    candidate: &Candidate<'_>,
    scale: &Stored,
    shape: &[usize],
    is_down: bool,
) -> Result<Grid> {
    candidate.check_dtype(scale, &FLOATS)?;
    let (lead, matrix) = shape.split_at(shape.len() - 2);
    let rows = matrix[0];
    let columns = matrix[1];
    let numbers = Matrix::rows(scale, scale.dtype, 1);
    if is_of_all(scale, lead) {
        let all = rows * lead.iter().product::<usize>();
        return Ok(Grid::new(numbers, all, 1, [all, columns]));
    }
    let name = scale.name.rsplit('.').next().unwrap_or_default();
    let count = match scale.shape.strip_prefix(lead) {
        Some([] | [1] | [1, 1]) if !lead.is_empty() => 1,
        Some([2]) if name.starts_with("w13") && !is_down && rows % 2 == 0 => 2,
        _ => {
            let expected = format!("one number, or one for each matrix of shape {}", Shape(shape));
            return Err(candidate.wrong_shape(scale, expected));
        }
    };
    Ok(Grid::new(numbers, rows, count, [rows / count, columns]))
}

/// `[.., rows, groups, 16]` bytes and `[.., rows, groups]` exponents. transformers' names mean the
/// transposed matrices; OpenAI's do not.
fn experts(
    candidate: &Candidate<'_>,
    scales: &Stored,
    name: &str,
    is_transposed: bool,
) -> Result<Weight> {
    let tensor = candidate.tensor;
    candidate.check_dtype(scales, &EXPONENTS)?;
    let [lead @ .., rows, groups, 16] = &tensor.shape[..] else {
        return Err(candidate.wrong_shape(tensor, "shape [.., rows, groups, 16]"));
    };
    candidate.check_shape(scales, &tensor.shape[..tensor.shape.len() - 1])?;
    let rows = *rows;
    let groups = *groups;
    let columns = groups * 32;
    let lies = Lies::Rows { bits: columns as u64 * 4 };
    let codes = Matrix::new(tensor, Dtype::F4, lies, columns);
    let exponents = Matrix::rows(scales, candidate.numbers(scales)?, groups);
    let (codes, grid, shape) = if is_transposed {
        let grid = Grid::new(exponents.transposed(rows), columns, groups, [32, 1]);
        (Grouped::new(codes.transposed(rows), rows), grid, [columns, rows])
    } else {
        let grid = Grid::new(exponents, rows, rows, [1, 32]);
        (Grouped::new(codes, columns), grid, [rows, columns])
    };
    let shape = [lead, &shape[..]].concat();
    let candidate = Candidate { scheme: "mxfp4", ..*candidate };
    Ok(candidate.weight(name, &shape, &[tensor, scales], codes.scaled(grid)))
}

// ComfyUI's NVFP4 and MXFP8 have equal names, and other bits.
pub(super) fn check_no_tiles(candidate: &Candidate<'_>, scales: &Stored) -> Result<()> {
    let Candidate { scheme, model, tensor } = *candidate;
    let [rows, groups] = scales.shape[..] else { return Ok(()) };
    if is_of_comfy(model) {
        let reason = "scales of small groups without a mark, which would say how they lie";
        return Err(unsupported("ComfyUI", reason).in_tensor(&tensor.name));
    }
    let may_be_tiles = rows.is_multiple_of(128) && groups.is_multiple_of(4);
    match model.config.method.is_none() && may_be_tiles {
        true => Err(ambiguous(tensor, scheme, "ComfyUI")),
        false => Ok(()),
    }
}

pub(super) fn is_exponents(scales: &Stored) -> bool {
    EXPONENTS.contains(&scales.dtype)
}
