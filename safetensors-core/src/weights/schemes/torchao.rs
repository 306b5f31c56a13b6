//! torchao: 8-bit floats and integers. The file's metadata names the type of each weight.
//!
//! W = (q − zero point) · scale, times the factors that the input is multiplied by first.

use serde_json::Value;

use super::super::model::{Candidate, Weight, unsupported};
use crate::format::dtype::Dtype;
use crate::format::error::Result;

/// Elements in C order.
const PLAIN: &[&str] = &["Float8Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor"];

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let Some(base) = tensor.name.strip_suffix("_qdata") else { return Ok(None) };
    let Some((module, name)) = base.rsplit_once("._") else { return Ok(None) };
    let name = format!("{module}.{}", name.trim_end_matches('_'));
    let json = model.metadata.get(&name);
    let json = json.and_then(|json| serde_json::from_str::<Value>(json).ok());
    let json = json.unwrap_or_default();
    let kind = json.get("_type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| !PLAIN.contains(kind)) {
        return Err(unsupported("torchao", format!("the type {kind}")).in_tensor(&name));
    }
    candidate.check_dtype(tensor, &[Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::I8])?;
    let scales = match kind.is_some() || base.ends_with("._weight") {
        true => Some(candidate.need(&format!("{base}_scale"))?),
        false => candidate.scales(&format!("{base}_scale"))?,
    };
    let Some(scales) = scales else { return Ok(None) };
    let parts = json.get("_tensor_data_names").and_then(Value::as_array);
    for part in parts.into_iter().flatten().filter_map(Value::as_str) {
        candidate.need(&format!("{base}_{part}"))?;
    }
    candidate.check_numbers(scales)?;
    let zeros = model.get(&format!("{base}_zero_point"));
    // SmoothQuant and AWQ multiply the input of the module by it.
    let factors = model.get(&format!("{base}_act_pre_scale"));
    candidate.plain(name, (scales, scales.dtype), zeros, factors).map(Some)
}
