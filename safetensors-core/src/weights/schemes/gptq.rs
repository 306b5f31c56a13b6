//! GPTQ, and AutoRound in its packing: integers of 2, 3, 4 and 8 bits, a stream down each column.
//!
//! W`[o, i]` = (q`[i, o]` − z`[g, o]`) · s`[g, o]`, in F32, with the group g of input i. Files of
//! version 1 store z − 1; gptqmodel's `convert_gptq_file` adds 1 within the bits of a code.

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::matrix::{Lies, Matrix, Stored};
use super::super::model::{Candidate, Model, Weight, unsupported};
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
    let ([words, outputs], [groups, _]) = (tensor.matrix(), scales.matrix());
    if scales.matrix()[1] == outputs * 8 {
        // AWQ packs the outputs.
        return Ok(None);
    }
    candidate.check_shape(scales, &[groups, outputs])?;
    let zeros = candidate.need(&format!("{module}.qzeros"))?;
    candidate.check_dtype(zeros, &[Dtype::I32])?;
    candidate.check_numbers(scales)?;
    let bits = bits(candidate, zeros, outputs)?;
    if words * 32 % bits != 0 {
        let found = format!("{words} rows of words");
        return Err(candidate.mismatch(tensor, format_args!("whole codes of {bits} bits"), found));
    }
    let inputs = words * 32 / bits;
    candidate.check_shape(zeros, &[groups, outputs * bits / 32])?;
    let mask = (1 << bits) - 1;
    let first = is_first_version(model).map_err(|error| error.in_tensor(&tensor.name))?;
    let values = (0..=mask).map(|code: i32| ((code + i32::from(first)) & mask) as f32).collect();
    let mut tensors = vec![tensor, zeros, scales];
    let codes = Codes::unsigned(bits, Order::LowFirst, 0);
    let codes = Matrix::new(tensor, codes, Lies::Down { word: 32 }, outputs).transposed(inputs);
    let zeros = Matrix::rows(zeros, Codes::new(bits, Order::LowFirst, values), outputs);
    let factors = Matrix::rows(scales, scales.dtype, outputs);
    let grids = [factors, zeros].map(|m| m.transposed(groups));
    let by_settings = model.config.number("group_size").filter(|_| !model.config.has_exceptions());
    candidate.check_group_size(scales, by_settings, [inputs, groups])?;
    let size = group_size(model, inputs, groups);
    let mut grids = grids.map(|matrix| Grid::new(matrix, outputs, outputs, [1, size]));
    if let Some(indices) = indices(candidate, module, groups)? {
        candidate.check_groups(indices, inputs, groups)?;
        tensors.push(indices);
        grids = grids.map(|grid| grid.indexed(indices, groups, false));
    } else if inputs.div_ceil(size) != groups {
        let expected = format!("{} groups of {size} inputs", inputs.div_ceil(size));
        return Err(candidate.mismatch(scales, expected, format_args!("{groups} groups")));
    }
    let [factors, zeros] = grids;
    let numbers = Grouped::new(codes, inputs).scaled(factors).zeroed(Some(zeros));
    Ok(Some(candidate.weight(format!("{module}.weight"), &[outputs, inputs], &tensors, numbers)))
}

/// Finds the group of each input, which only weights in another order need.
fn indices<'a>(
    candidate: &Candidate<'a>,
    module: &str,
    groups: usize,
) -> Result<Option<&'a Stored>> {
    let name = format!("{module}.g_idx");
    match candidate.model.config.is_set("desc_act") && groups > 1 {
        true => candidate.need(&name).map(Some),
        false => Ok(candidate.model.get(&name)),
    }
}

/// Counts by the zero points, which the settings must agree with.
fn bits(candidate: &Candidate<'_>, zeros: &Stored, outputs: usize) -> Result<usize> {
    let Candidate { model, tensor, .. } = *candidate;
    let words = zeros.matrix()[1];
    let found = [2, 3, 4, 8].into_iter().find(|bits| outputs * bits == words * 32);
    let found = found.filter(|_| outputs > 0).ok_or_else(|| {
        let expected = format!("{outputs} codes of 2, 3, 4 or 8 bits in a row");
        candidate.mismatch(zeros, expected, format_args!("{words} words"))
    })?;
    match model.config.number("bits") {
        // Some modules of a model may have other bits.
        Some(bits) if bits != found && !model.config.has_exceptions() => {
            let expected = format!("codes of {bits} bits, as the settings say");
            Err(candidate.mismatch(tensor, expected, format_args!("{found} bits")))
        }
        _ => Ok(found),
    }
}

/// Returns `true` if zero points are stored as one less.
fn is_first_version(model: &Model<'_>) -> Result<bool> {
    let format = ["packing_format", "checkpoint_format", "format"];
    let format = format.iter().find_map(|key| model.config.text(key));
    let is_auto_round = model.config.method.as_deref() == Some("auto-round");
    // The files of AutoRound's first versions, which have no packing.
    let backend = model.config.text("backend").filter(|_| is_auto_round && format.is_none());
    if let Some(backend) = backend.filter(|backend| backend.starts_with("auto_round")) {
        return match backend {
            _ if backend.contains("gptq") => Ok(true),
            "auto_round" | "auto_round:exllamav2" | "auto_round:tritonv2" => Ok(false),
            _ => Err(unsupported("GPTQ", format!("the packing {backend}"))),
        };
    }
    match format {
        None if model.config.method.is_none() => {
            let problem = "GPTQ needs \"quantization_config\" in the config.json next to the \
                           files, which tells whether zero points are stored as one less";
            Err(bad_config(problem.into()))
        }
        None => Ok(true),
        Some("gptq" | "auto_round:gptq" | "auto_round:auto_gptq" | "auto_gptq") => Ok(true),
        Some("gptq_v2" | "auto_round" | "auto_round:gptqmodel") => Ok(false),
        Some(other) => Err(unsupported("GPTQ", format!("the packing {other}"))),
    }
}

fn group_size(model: &Model<'_>, inputs: usize, groups: usize) -> usize {
    let by_settings = model.config.number("group_size");
    let size = by_settings.filter(|&size| size > 0 && inputs.div_ceil(size) == groups);
    size.unwrap_or_else(|| inputs.checked_div(groups).unwrap_or(0)).max(1)
}
