//! The schemes: one file each, and a row in [`SCHEMES`].

mod awq;
mod bitsandbytes;
mod comfy;
mod companions;
mod fp4;
mod gemma;
mod gptq;
mod hqq;
mod mlx;
mod packed;
mod quanto;
mod refused;
mod scaled;
mod scales;
mod torchao;

pub(super) use companions::bare;

use super::matrix::Stored;
use super::model::{Model, Scheme, Weight, ambiguous, unsupported};
use crate::error::Result;

/// Every scheme. Those that are refused come first, because some have the names of others.
const SCHEMES: &[&dyn Scheme] = &[
    &refused::Refused,
    &scaled::Scaled,
    &fp4::Fp4,
    &packed::Packed,
    &gptq::Gptq,
    &awq::Awq,
    &bitsandbytes::BitsAndBytes,
    &comfy::Comfy,
    &torchao::Torchao,
    &hqq::Hqq,
    &quanto::Quanto,
    &mlx::Mlx,
    &gemma::Gemma,
];

/// The quantised weights of a model, in the order of the tensors that have their codes.
pub(super) fn weights(model: &Model<'_>) -> Result<Vec<Weight>> {
    let mut weights = Vec::new();
    for tensor in model.tensors() {
        weights.extend(of_codes(model, &tensor)?);
    }
    companions::check_marks(model, &weights)?;
    Ok(weights)
}

/// The weight whose codes are in a tensor; `None` if the tensor is a plain one, or a companion.
pub(super) fn of_codes(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    if !companions::may_be_codes(tensor.dtype) && !has_floats_for_codes(model, tensor) {
        return Ok(None);
    }
    let method = model.config.method.as_deref();
    let knows = |scheme: &&dyn Scheme| method.is_some_and(|m| scheme.methods().contains(&m));
    if method.is_some() && !SCHEMES.iter().any(|scheme| knows(scheme)) {
        return companions::unexplained(model, tensor, false).map(|()| None);
    }
    let mut found: Option<Weight> = None;
    for scheme in SCHEMES {
        if method.is_some() && !scheme.methods().is_empty() && !knows(scheme) {
            continue;
        }
        let Some(weight) = scheme.weight(model, tensor)? else { continue };
        if let Some(other) = &found {
            return Err(ambiguous(tensor, other.scheme, weight.scheme));
        }
        found = Some(weight);
    }
    let Some(weight) = found else {
        return companions::unexplained(model, tensor, true).map(|()| None);
    };
    if model.config.has_transforms() {
        return Err(unsupported("compressed-tensors", "the weights are rotated"));
    }
    companions::explained(model, weight).map(Some)
}

/// Whether the floats of a tensor may be the bytes of codes, as bitsandbytes and HQQ store them.
fn has_floats_for_codes(model: &Model<'_>, tensor: &Stored) -> bool {
    let name = &tensor.name;
    let is_of_bits = |module| model.get(&format!("{module}.nbits")).is_some();
    name.strip_suffix(".W_q").is_some_and(is_of_bits)
        || matches!(tensor.shape[..], [_, 1])
            && bitsandbytes::companions(name).iter().any(|state| model.get(state).is_some())
}
