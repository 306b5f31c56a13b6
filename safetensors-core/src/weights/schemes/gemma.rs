//! Gemma's packed weights: integers of 2, 4 and 8 bits with a scale for each row, also of
//! embeddings.
//!
//! W = q · scale. The settings name the number of bits, for some modules by regular expressions.

use std::collections::BTreeMap;

use super::super::codes::{Codes, Order};
use super::super::config::bad_config;
use super::super::known::Bits;
use super::super::matrix::{Matrix, Stored};
use super::super::model::{Model, Weight, check_dtype, mismatch, unsupported, weight};
use super::super::weight::Grouped;
use super::scales::grid;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::patterns::Expressions;

const NAME: &str = "Gemma's packed integers";

pub(super) fn find(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    if model.config.method.as_deref() != Some("gemma") {
        return Ok(None);
    }
    let Some((module, scale)) = module_of(tensor) else { return Ok(None) };
    let scales = model.need(NAME, tensor, &format!("{module}.{scale}"))?;
    check_dtype(NAME, scales, &[Dtype::F32, Dtype::BF16, Dtype::F16])?;
    let [rows, packed] = tensor.shape[..] else {
        let found = format!("{} dimensions", tensor.shape.len());
        return Err(mismatch(NAME, tensor, "two dimensions", found));
    };
    let bits = bits(model, module).map_err(|error| error.in_tensor(&tensor.name))?;
    let codes = match (bits, tensor.dtype) {
        (8, Dtype::I8) => Codes::signed(8, Order::LowFirst),
        (2 | 4, Dtype::U8) => Codes::unsigned(bits, Order::LowFirst, 1 << (bits - 1)),
        (2 | 4 | 8, dtype) => {
            let expected = format!("codes of {bits} bits, as the settings say");
            return Err(mismatch(NAME, tensor, expected, dtype));
        }
        _ => return Err(unsupported("Gemma", format!("{bits} bits")).in_tensor(&tensor.name)),
    };
    let columns = packed * 8 / bits;
    let factors = grid(NAME, model, &[rows, columns], scales, scales.dtype)?;
    let codes = Grouped::new(Matrix::rows(tensor, codes, columns), columns).scaled(factors);
    let tensors = [tensor, scales];
    Ok(Some(weight(NAME, format!("{module}.weight"), &[rows, columns], &tensors, codes)))
}

/// The module of a tensor that may have codes, and the name of its scales.
fn module_of(tensor: &Stored) -> Option<(&str, &'static str)> {
    let names = [(".weight", "weight_scale"), (".embedding_quantized", "embedding_scale")];
    let is_packed = matches!(tensor.dtype, Dtype::U8 | Dtype::I8);
    let mut names = names.into_iter().filter(|_| is_packed);
    names.find_map(|(end, scale)| Some((tensor.name.strip_suffix(end)?, scale)))
}

/// The number of bits of a module: by the pattern that is found first in its name, or the number for
/// all modules.
fn bits(model: &Model<'_>, module: &str) -> Result<usize> {
    let found = model.bits_by_pattern(|| by_pattern(model))?.get(module);
    match found {
        None => Ok(for_all(model)),
        // The order of two is lost in a JSON object.
        Some(Bits { bits, other: Some(other), .. }) => Err(bad_config(format!(
            "two of \"module_quant_configs\" fit, of {bits} and {other} bits"
        ))),
        Some(found) => Ok(found.bits),
    }
}

fn for_all(model: &Model<'_>) -> usize {
    model.config.number("num_bits").unwrap_or(4)
}

/// The modules that a pattern of the settings is found in. A pattern goes through all of them, so
/// that one is in memory at a time.
fn by_pattern(model: &Model<'_>) -> Result<BTreeMap<String, Bits>> {
    let mut patterns = model.config.bits_by_pattern().peekable();
    let mut found = BTreeMap::<String, Bits>::new();
    if patterns.peek().is_none() {
        return Ok(found);
    }
    let tensors = model.tensors();
    let modules: Vec<_> =
        tensors.filter_map(|tensor| Some(module_of(&tensor)?.0.to_owned())).collect();
    let mut expressions = Expressions::default();
    for (pattern, bits) in patterns {
        let regex = expressions.compile(pattern, str::to_owned).map_err(|problem| {
            let problem = format!("module_quant_configs: {problem}");
            bad_config(problem).in_path(&model.config.file)
        })?;
        let bits = bits.unwrap_or(for_all(model));
        for module in &modules {
            let Some(start) = regex.find(module).map(|found| found.start()) else { continue };
            match found.get_mut(module) {
                Some(known) if known.start < start => {}
                Some(known) if known.start == start => {
                    known.other = known.other.or(Some(bits)).filter(|other| *other != known.bits);
                }
                _ => _ = found.insert(module.clone(), Bits { start, bits, other: None }),
            }
        }
    }
    Ok(found)
}
