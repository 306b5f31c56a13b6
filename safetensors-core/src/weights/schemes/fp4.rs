//! Floats of 4 and 6 bits with scales of small groups: NVFP4 and MXFP4 of compressed-tensors and
//! ModelOpt, also of stacked experts, MXFP4 of Quark, MXFP6, the experts of gpt-oss and of
//! DeepSeek-V4.
//!
//! W = code · scale, with the scale of a group divided (compressed-tensors) or multiplied
//! (ModelOpt) by the scale of the weight first, in F32.

use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{
    Model, Weight, ambiguous, check_dtype, check_shape, mismatch, unsupported, weight,
};
use super::super::weight::{Combine, Grid, Grouped, Scales};
use super::companions::{comfy_mark, is_of_comfy};
use super::packed::scales_of_packed;
use super::scales::{is_of_all, numbers_of, scales_of, times_columns};
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

const NAME: &str = "FP4 with scales";

/// The sizes of the groups of NVFP4, which have a second scale, and of the others.
const SIZES: [usize; 2] = [16, 32];

pub(super) fn find(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    if tensor.shape.len() < 2 {
        return Ok(None);
    }
    match tensor.dtype {
        Dtype::U8 => {
            if let Some(name) = tensor.name.strip_suffix("_packed") {
                let scales = scales_of_packed(NAME, model, tensor, name)?;
                let found = scales.map(|scales| compressed(model, tensor, scales, name));
                return found.transpose();
            }
            for (end, of_scales, is_transposed) in
                [("_blocks", "_scales", true), (".blocks", ".scales", false)]
            {
                let Some(name) = tensor.name.strip_suffix(end) else { continue };
                let scales = scales_of(NAME, model, tensor, &format!("{name}{of_scales}"))?;
                let found = scales.map(|scales| experts(tensor, scales, name, is_transposed));
                return found.transpose();
            }
            modelopt(model, tensor)
        }
        Dtype::F4 => modelopt(model, tensor),
        Dtype::I8 => deepseek(model, tensor),
        _ => Ok(None),
    }
}

/// Returns the scale of an entire weight that multiplies the scales of groups: `W_scale_2`, for
/// stacked experts also `W_weight_scale_2`.
pub(super) fn second_scale<'m>(model: &'m Model<'_>, name: &str) -> Option<&'m Stored> {
    let of_experts = (!name.ends_with(".weight")).then(|| format!("{name}_weight_scale_2"));
    model.first([format!("{name}_scale_2")].into_iter().chain(of_experts))
}

/// Finds `W_packed`, `W_scale` and, for NVFP4, `W_global_scale`, where W may be `X.weight`.
fn compressed(model: &Model<'_>, tensor: &Stored, scales: &Stored, name: &str) -> Result<Weight> {
    let global = model.get(&format!("{name}_global_scale"));
    let second = global.map(|global| (Combine::Divide, global));
    let mut found = of_groups(model, tensor, scales, second)?;
    found.name = name.to_owned();
    Ok(found)
}

/// Finds `W`, `W_scale` and, for NVFP4, `W_scale_2`; of stacked experts also `W_weight_scale` and
/// `W_weight_scale_2`.
fn modelopt(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
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
        check_no_tiles(NAME, model, tensor, scales)?;
    }
    let second = second.map(|second| (Combine::Multiply, second));
    let found = of_groups(model, tensor, scales, second)?;
    let factors = model.get(&format!("{}.pre_quant_scale", module.unwrap_or(name)));
    times_columns(found, factors).map(Some)
}

/// Returns the experts of DeepSeek-V4: two codes in each I8 of `X.weight`, and `X.scale`.
fn deepseek(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
    let scales = model.get(&format!("{module}.scale")).filter(|scales| is_exponents(scales));
    scales.map(|scales| of_groups(model, tensor, scales, None)).transpose()
}

/// Makes a weight of rows of codes with a scale for each group of columns, and perhaps one for all.
/// Stacked matrices may have columns of codes with a scale for each group of rows, as ModelOpt
/// stores experts with inputs as rows.
fn of_groups(
    model: &Model<'_>,
    tensor: &Stored,
    scales: &Stored,
    second: Option<(Combine, &Stored)>,
) -> Result<Weight> {
    let [stored_rows, packed] = tensor.matrix();
    let [_, groups] = scales.matrix();
    // Codes of six bits are three quarters of their number in bytes.
    let is_six = second.is_none() && groups * 24 == packed && tensor.dtype != Dtype::F4;
    if is_six && model.config.method.as_deref() == Some("quark") {
        // Other bits come first, and the dtype may be F6_E3M2.
        return Err(unsupported("Quark", "floats of 6 bits").in_tensor(&tensor.name));
    }
    let (dtype, columns) = match (is_six, tensor.dtype) {
        (true, _) => (Dtype::F6_E2M3, groups * 32),
        (false, Dtype::F4) => (Dtype::F4, packed),
        (false, _) => (Dtype::F4, packed * 2),
    };
    let size = SIZES[usize::from(second.is_none())];
    match second {
        Some(_) => check_dtype(NAME, scales, &[Dtype::F8_E4M3])?,
        None => check_dtype(NAME, scales, &[Dtype::U8, Dtype::F8_E8M0])?,
    }
    let lead = &tensor.shape[..tensor.shape.len() - 2];
    let numbers = numbers_of(NAME, scales)?;
    let down = [lead, &[stored_rows * 2 / size, packed]].concat();
    let is_down = lead.len() == 1
        && tensor.dtype == Dtype::U8
        && scales.shape == down
        && (stored_rows * 2).is_multiple_of(size);
    let (shape, columns, codes, first) = if is_down {
        let rows = stored_rows * 2;
        let codes = Matrix::new(tensor, dtype, Lies::Down { word: 8 }, packed);
        let first = Matrix::rows(scales, numbers, packed);
        let first = Grid::new(first, rows, rows / size, [size, 1]);
        ([lead, &[rows, packed]].concat(), packed, codes, first)
    } else {
        if !columns.is_multiple_of(size) {
            let expected = format!("rows of whole groups of {size} codes");
            return Err(mismatch(NAME, tensor, expected, format_args!("{columns} codes")));
        }
        let groups = columns / size;
        check_shape(NAME, scales, &[lead, &[stored_rows, groups]].concat())?;
        let codes = Matrix::rows(tensor, dtype, columns);
        let first = Matrix::rows(scales, numbers, groups);
        let first = Grid::new(first, stored_rows, stored_rows, [1, size]);
        ([lead, &[stored_rows, columns]].concat(), columns, codes, first)
    };
    let mut tensors = vec![tensor, scales];
    let second = match second {
        None => None,
        Some((combine, scale)) => {
            tensors.push(scale);
            Some((combine, of_matrices(scale, &shape, is_down)?))
        }
    };
    let scheme = match (&second, is_six) {
        (Some(_), _) => "nvfp4",
        (None, true) => "mxfp6",
        (None, false) => "mxfp4",
    };
    let codes = Grouped::new(codes, columns).scaled(Scales { first, second });
    Ok(weight(scheme, &tensor.name, &shape, &tensors, codes))
}

/// Returns the second scale of a weight or of each of its matrices. The first half of the rows and
/// the second may have their own, where the name says that they are two matrices (`w13`).
fn of_matrices(scale: &Stored, shape: &[usize], is_down: bool) -> Result<Grid> {
    check_dtype(NAME, scale, &[Dtype::F32, Dtype::BF16, Dtype::F16])?;
    let (lead, matrix) = shape.split_at(shape.len() - 2);
    let rows = matrix[0];
    let columns = matrix[1];
    let numbers = Matrix::rows(scale, scale.dtype, 1);
    if is_of_all(scale, lead) {
        let all = rows * lead.iter().product::<usize>();
        return Ok(Grid::new(numbers, all, 1, [all, columns]));
    }
    let name = scale.name.rsplit('.').next().unwrap_or_default();
    let found = match scale.shape.strip_prefix(lead) {
        Some([] | [1] | [1, 1]) if !lead.is_empty() => Some(1),
        Some([2]) if name.starts_with("w13") && !is_down && rows % 2 == 0 => Some(2),
        _ => None,
    };
    let count = found.ok_or_else(|| {
        let expected = format!("one number, or one for each matrix of shape {}", Shape(shape));
        mismatch(NAME, scale, expected, format_args!("shape {}", Shape(&scale.shape)))
    })?;
    Ok(Grid::new(numbers, rows, count, [rows / count, columns]))
}

/// Returns the experts of gpt-oss: `[.., rows, groups, 16]` bytes and `[.., rows, groups]`
/// exponents. transformers' names mean the transposed matrices, as its models hold them; OpenAI's
/// do not.
fn experts(tensor: &Stored, scales: &Stored, name: &str, is_transposed: bool) -> Result<Weight> {
    check_dtype(NAME, scales, &[Dtype::U8, Dtype::F8_E8M0])?;
    let [lead @ .., rows, groups, 16] = &tensor.shape[..] else {
        let found = format!("shape {}", Shape(&tensor.shape));
        return Err(mismatch(NAME, tensor, "shape [.., rows, groups, 16]", found));
    };
    check_shape(NAME, scales, &tensor.shape[..tensor.shape.len() - 1])?;
    let rows = *rows;
    let groups = *groups;
    let columns = groups * 32;
    let lies = Lies::Rows { bits: columns as u64 * 4 };
    let codes = Matrix::new(tensor, Dtype::F4, lies, columns);
    let exponents = Matrix::rows(scales, numbers_of(NAME, scales)?, groups);
    let (codes, grid, shape) = if is_transposed {
        let grid = Grid::new(exponents.transposed(rows), columns, groups, [32, 1]);
        (Grouped::new(codes.transposed(rows), rows), grid, [columns, rows])
    } else {
        let grid = Grid::new(exponents, rows, rows, [1, 32]);
        (Grouped::new(codes, columns), grid, [rows, columns])
    };
    let shape = [lead, &shape[..]].concat();
    Ok(weight("mxfp4", name, &shape, &[tensor, scales], codes.scaled(grid)))
}

/// Checks that a weight of a module without a mark is not ComfyUI's: its NVFP4 and MXFP8 have equal
/// names, and other bits.
pub(super) fn check_no_tiles(
    scheme: &'static str,
    model: &Model<'_>,
    tensor: &Stored,
    scales: &Stored,
) -> Result<()> {
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

/// Returns whether a tensor holds powers of two.
pub(super) fn is_exponents(scales: &Stored) -> bool {
    matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0)
}
