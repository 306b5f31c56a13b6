//! Weights of 8-bit floats or integers with separate scales.
//! From DeepSeek, FBGEMM, compressed-tensors, ModelOpt (FP8, MXFP8) and ComfyUI (`scale_weight`);
//! also F4 and F6 with one tensor of scales.
//!
//! W = (weight − zero point) · scale, in F32, as DeepSeek's `weight_dequant` and
//! `FP8BlockDequantizer` of compressed-tensors compute it.

use super::super::model::{Candidate, Weight};
use super::companions::comfy_mark;
use super::fp4::{check_no_tiles, is_exponents, second_scale};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

const FLOATS: &[Dtype] = &[
    Dtype::F8_E4M3,
    Dtype::F8_E5M2,
    Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ,
    Dtype::F4,
    Dtype::F6_E2M3,
    Dtype::F6_E3M2,
];

/// Returns the name in settings and `--quantize`.
fn name_of(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::I8 => "int8",
        Dtype::F4 => "fp4",
        Dtype::F6_E2M3 | Dtype::F6_E3M2 => "fp6",
        _ => "fp8",
    }
}

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let is_float = FLOATS.contains(&tensor.dtype);
    if !is_float && tensor.dtype != Dtype::I8 {
        return Ok(None);
    }
    let name = &tensor.name;
    let candidate = Candidate { scheme: name_of(tensor.dtype), ..*candidate };
    let module = name.strip_suffix(".weight");
    // F4 with two scales is NVFP4.
    let is_of_two = tensor.dtype == Dtype::F4 && second_scale(model, name).is_some();
    if is_of_two || module.is_some_and(|module| comfy_mark(model, module).is_some()) {
        return Ok(None);
    }
    let mut names = vec![format!("{name}_scale_inv"), format!("{name}_scale")];
    if module.is_none() {
        names.push(format!("{name}_weight_scale"));
    }
    if is_float && let Some(module) = name.strip_suffix("weight") {
        names.extend(["scale_weight", "scale", "qscale_weight"].map(|n| format!("{module}{n}")));
    }
    let Some(scales) = model.first(&names) else {
        // If all weights of a model have scales, none lacks them.
        let is_expected = is_float && module.is_some() && model.config.method.is_some();
        return match is_expected {
            true => candidate.need(&names[1]).map(|_| None),
            false => Ok(None),
        };
    };
    if is_exponents(scales) && module.is_some() && scales.name == names[1] {
        check_no_tiles(&candidate, scales)?;
    }
    let numbers = candidate.numbers(scales)?;
    let zeros = candidate.zero_points(name)?;
    let factors = module.and_then(|module| model.get(&format!("{module}.pre_quant_scale")));
    candidate.plain(name, (scales, numbers), zeros, factors).map(Some)
}
