//! Gemma's packed weights and embeddings: integers of 2, 4 and 8 bits, a scale for each row.
//!
//! W = q · scale. The settings name the number of bits, for some modules by regular expressions.

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::matrix::Matrix;
use super::super::model::{Candidate, Model, Weight, unsupported};
use super::super::weight::Grouped;
use super::scales::FLOATS;
use crate::format::dtype::Dtype;
use crate::format::error::Result;

pub(super) fn find(candidate: &Candidate<'_>) -> Result<Option<Weight>> {
    let Candidate { model, tensor, .. } = *candidate;
    let is_packed = matches!(tensor.dtype, Dtype::U8 | Dtype::I8);
    if model.config.method.as_deref() != Some("gemma") || !is_packed {
        return Ok(None);
    }
    let names = [(".weight", "weight_scale"), (".embedding_quantized", "embedding_scale")];
    let found =
        names.into_iter().find_map(|(end, scale)| Some((tensor.name.strip_suffix(end)?, scale)));
    let Some((module, scale)) = found else { return Ok(None) };
    let scales = candidate.need(&format!("{module}.{scale}"))?;
    candidate.check_dtype(scales, &FLOATS)?;
    let [rows, packed] = tensor.shape[..] else {
        let found = format!("{} dimensions", tensor.shape.len());
        return Err(candidate.mismatch(tensor, "two dimensions", found));
    };
    let bits = bits(model, module).map_err(|error| error.in_tensor(&tensor.name))?;
    let codes = match (bits, tensor.dtype) {
        (8, Dtype::I8) => Codes::signed(8, Order::LowFirst),
        (2 | 4, Dtype::U8) => Codes::unsigned(bits, Order::LowFirst, 1 << (bits - 1)),
        (2 | 4 | 8, dtype) => {
            let expected = format!("codes of {bits} bits, as the settings say");
            return Err(candidate.mismatch(tensor, expected, dtype));
        }
        _ => return Err(unsupported("Gemma", format!("{bits} bits")).in_tensor(&tensor.name)),
    };
    let columns = packed * 8 / bits;
    let factors = candidate.grid(&[rows, columns], scales, scales.dtype)?;
    let codes = Grouped::new(Matrix::rows(tensor, codes, columns), columns).scaled(factors);
    let tensors = [tensor, scales];
    Ok(Some(candidate.weight(format!("{module}.weight"), &[rows, columns], &tensors, codes)))
}

/// Takes the first expression in the module's name, or otherwise the setting for all.
fn bits(model: &Model<'_>, module: &str) -> Result<usize> {
    let all = model.config.number("num_bits").unwrap_or(4);
    let patterns = model.config.bits_by_name()?.iter();
    let found = patterns.filter_map(|(pattern, bits)| {
        let bits = bits.map_or(all, |bits| usize::try_from(bits).unwrap_or(usize::MAX));
        Some((pattern.find(module)?.start(), bits))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found.dedup();
    match found[..] {
        // The order of two is lost in a JSON object.
        [(start, one), (same, other), ..] if start == same => Err(bad_config(format!(
            "two of \"module_quant_configs\" fit, of {one} and {other} bits"
        ))),
        [(_, bits), ..] => Ok(bits),
        [] => Ok(all),
    }
}
