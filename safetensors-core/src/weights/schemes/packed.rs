//! Integers of 1 to 8 bits, packed into words along the rows or down the columns.
//! Along: pack-quantized of compressed-tensors. Down: ModelOpt's W4A16 with AWQ.
//!
//! W = (code − zero point) · scale, in F32.

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Model, Weight, unsupported};
use super::super::weight::{Grid, Grouped};
use super::companions::comfy_mark;
use crate::format::dtype::Dtype;
use crate::format::error::{Result, Shape};

/// The first version of compressed-tensors that packs codes as a stream.
const STREAMS: (u32, u32) = (0, 18);

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    if let Some(name) = tensor.name.strip_suffix("_packed") {
        if tensor.dtype != Dtype::I32 || tensor.shape.len() < 2 {
            return Ok(None);
        }
        let scales = scales_of_packed(candidate, name)?;
        return scales.map(|scales| compressed(candidate, scales, name)).transpose();
    }
    let Some(module) = tensor.name.strip_suffix(".weight") else { return Ok(None) };
    let scales = model.get(&format!("{module}.weight_scale"));
    let is_float = |scales: &&Stored| scales.dtype.bits() >= 16 && scales.dtype.is_float();
    match scales.filter(is_float) {
        Some(scales)
            if tensor.dtype == Dtype::U8
                && comfy_mark(model, module).is_none()
                && model.get(&format!("{module}.weight_scale_2")).is_none() =>
        {
            modelopt(candidate, module, scales).map(Some)
        }
        _ => Ok(None),
    }
}

/// Finds `W_packed` `[.., rows, words]`, `W_scale`, `W_shape` and perhaps `W_zero_point` and
/// `W_g_idx`, where W may be `X.weight`.
fn compressed(candidate: &Candidate<'_>, scales: &Stored, name: &str) -> Result<Weight> {
    let Candidate { model, tensor, .. } = *candidate;
    let of_shape = of_shape(candidate, name)?;
    let shape = shape(candidate, of_shape)?;
    let columns = shape[shape.len() - 1];
    let (bits, order) = bits(candidate, columns)?;
    let codes = Codes::unsigned(bits, order, 1 << (bits - 1));
    let mut tensors = vec![tensor, scales];
    tensors.extend(of_shape);
    candidate.check_numbers(scales)?;
    let sizes = model.config.sizes_of_groups(columns);
    candidate.check_group_size(scales, sizes, [columns, scales.matrix()[1]])?;
    let mut factors = candidate.grid(&shape, scales, scales.dtype)?;
    let mut zeros = match candidate.zero_points(name)? {
        None => None,
        Some(zeros) => {
            tensors.push(zeros);
            Some(zeros_of(candidate, &shape, (scales, zeros), bits)?)
        }
    };
    if let Some(groups) = model.get(&format!("{name}_g_idx")) {
        let count = scales.matrix()[1];
        candidate.check_groups(groups, columns, count)?;
        factors = factors.indexed(groups, count, true);
        zeros = zeros.map(|zeros| zeros.indexed(groups, count, true));
        tensors.push(groups);
    }
    let matrix = Matrix::rows(tensor, codes, columns);
    let numbers = Grouped::new(matrix, columns).scaled(factors).zeroed(zeros);
    Ok(candidate.weight(name, &shape, &tensors, numbers))
}

/// Fails without a shape, unless the weights are stacked.
fn of_shape<'a>(candidate: &Candidate<'a>, name: &str) -> Result<Option<&'a Stored>> {
    let shape = format!("{name}_shape");
    match candidate.tensor.shape.len() {
        2 => candidate.need(&shape).map(Some),
        _ => Ok(candidate.model.get(&shape)),
    }
}

/// Stacked matrices may have the shape of each, or none: then the words of a row are full.
fn shape(candidate: &Candidate<'_>, of_shape: Option<&Stored>) -> Result<Vec<usize>> {
    let Candidate { model, tensor, .. } = *candidate;
    let (lead, last) = tensor.shape.split_at(tensor.shape.len() - 1);
    let Some(of_shape) = of_shape else {
        let bits = bits_by_settings(model);
        return match bits[..] {
            [bits @ (1 | 2 | 4 | 8)] => Ok([lead, &[last[0] * (32 / bits)]].concat()),
            _ => {
                let problem =
                    "the settings name no number of bits, which a weight's shape depends on";
                Err(bad_config(problem.into()).in_tensor(&tensor.name))
            }
        };
    };
    let dims = model.dims(&of_shape.name);
    let of_each = [&lead[..lead.len() - 1], &[]].concat();
    let one = dims.get(dims.len().saturating_sub(2)..).unwrap_or_default();
    let is_of_each = of_shape.shape.len() == 2 && dims.chunks(2).all(|other| other == one);
    let shape = if is_of_each { [&of_each, one].concat() } else { dims };
    if shape.len() == tensor.shape.len() && shape[..lead.len()] == *lead {
        return Ok(shape);
    }
    let found = format!("the shape {}", Shape(&shape));
    let expected = format!("the shape {} with other columns", Shape(&tensor.shape));
    Err(candidate.mismatch(of_shape, expected, found))
}

/// Returns one for each scale: I8, or packed down the rows like the weight.
fn zeros_of(
    candidate: &Candidate<'_>,
    shape: &[usize],
    (scales, zeros): (&Stored, &Stored),
    bits: usize,
) -> Result<Grid> {
    if zeros.dtype != Dtype::I32 || zeros.shape == scales.shape {
        candidate.check_numbers(zeros)?;
        return candidate.grid(shape, zeros, zeros.dtype);
    }
    let [rows, groups] = scales.matrix();
    let columns = shape[shape.len() - 1];
    if shape.len() > 2 || 32 % bits != 0 && !is_stream(candidate.model) {
        let reason = format!("packed zero points of shape {} and {bits} bits", Shape(shape));
        return Err(unsupported("compressed-tensors", reason).in_tensor(&zeros.name));
    }
    candidate.check_len(zeros, [(rows * bits).div_ceil(32), groups])?;
    let codes = Codes::unsigned(bits, Order::LowFirst, 1 << (bits - 1));
    let matrix = Matrix::new(zeros, codes, Lies::Down { word: 32 }, groups);
    let size = if groups == 0 { columns } else { columns.div_ceil(groups) };
    Ok(Grid::new(matrix, rows, rows, [1, size]))
}

fn is_stream(model: &Model<'_>) -> bool {
    model.config.version().is_none_or(|version| version >= STREAMS)
}

fn bits(candidate: &Candidate<'_>, columns: usize) -> Result<(usize, Order)> {
    let Candidate { model, tensor, .. } = *candidate;
    let [_, words] = tensor.matrix();
    let allowed = bits_by_settings(model);
    let mut fitting = Vec::new();
    for bits in 1..=8 {
        if !allowed.is_empty() && !allowed.contains(&bits) {
            continue;
        }
        if (columns * bits).div_ceil(32) == words {
            fitting.push((bits, Order::LowFirst));
        }
        if 32 % bits != 0 && columns.div_ceil(32 / bits) == words {
            fitting.push((bits, Order::WholeWords));
        }
    }
    // Both orders of the same bits may need equal numbers of words.
    if let [(one, _), (other, _)] = fitting[..]
        && one == other
        && let Some(version) = model.config.version()
    {
        fitting.remove(usize::from(version >= STREAMS));
    }
    match fitting[..] {
        [found] => Ok(found),
        _ => {
            let bits = if allowed.is_empty() { "1 to 8".into() } else { format!("{allowed:?}") };
            let expected =
                format!("the words of {columns} codes of equal size ({bits} bits) in a row");
            Err(candidate.mismatch(tensor, expected, format_args!("{words} words")))
        }
    }
}

/// Finds `X.weight` `[rows / 2, columns]` with two rows in a byte, and `X.weight_scale`.
fn modelopt(candidate: &Candidate<'_>, module: &str, scales: &Stored) -> Result<Weight> {
    let tensor = candidate.tensor;
    let [rows, columns] = tensor.matrix();
    let shape = [rows * 2, columns];
    if tensor.shape.len() != 2 {
        return Err(candidate.wrong_shape(tensor, "two dimensions"));
    }
    // Codes of other schemes have one scale, such as BitNet's.
    if scales.shape.len() != 2 || scales.shape[0] != shape[0] {
        return Err(candidate.wrong_shape(scales, format_args!("shape [{}, groups]", shape[0])));
    }
    let codes = Codes::signed(4, Order::LowFirst);
    let matrix = Matrix::new(tensor, codes, Lies::Down { word: 8 }, columns);
    let numbers = candidate.grid(&shape, scales, scales.dtype)?;
    let numbers = Grouped::new(matrix, columns).scaled(numbers);
    let found = candidate.weight(&tensor.name, &shape, &[tensor, scales], numbers);
    let factors = candidate.model.get(&format!("{module}.pre_quant_scale"));
    candidate.times_columns(found, factors)
}

/// Fails if `X.weight_packed` has none.
pub(super) fn scales_of_packed<'a>(
    candidate: &Candidate<'a>,
    name: &str,
) -> Result<Option<&'a Stored>> {
    let scales = format!("{name}_scale");
    match name.ends_with(".weight") {
        true => candidate.need(&scales).map(Some),
        false => candidate.scales(&scales),
    }
}

fn bits_by_settings(model: &Model<'_>) -> Vec<usize> {
    let bits = model.config.bits_of_groups().into_iter().chain(model.config.number("bits"));
    let mut bits: Vec<_> = bits.collect();
    bits.sort_unstable();
    bits.dedup();
    bits
}
