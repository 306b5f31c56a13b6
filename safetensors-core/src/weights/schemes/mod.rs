//! The schemes: one file each, and a row in [`SCHEMES`].

mod awq;
mod bitsandbytes;
mod comfy;
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

use super::matrix::Stored;
use super::model::{Model, Scheme, Weight, ambiguous, unsupported};
use crate::dtype::Dtype;
use crate::error::Result;

/// Every scheme.
const SCHEMES: &[&dyn Scheme] = &[
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
    &refused::Refused,
];

/// The ends of names that only tensors of codes have.
const OF_CODES: &[&str] =
    &[".qweight", ".weight_packed", ".W_q", "_weight_qdata", ".embedding_quantized"];

/// The names of the scales that a module with a weight of integers has.
const OF_SCALES: &[&str] = &["weight_scale", "weight_scale_inv", "scales", "scale", "SCB"];

/// Whether a tensor has codes, of whatever scheme. They are no numbers by themselves.
fn is_of_codes(model: &Model<'_>, tensor: &Stored) -> bool {
    let name = &tensor.name;
    let is_whole = !tensor.dtype.is_float() && tensor.dtype != Dtype::BOOL;
    let module = name.strip_suffix(".weight").filter(|_| is_whole);
    OF_CODES.iter().any(|end| name.ends_with(end))
        || module.is_some_and(|module| {
            model.first(OF_SCALES.iter().map(|scale| format!("{module}.{scale}"))).is_some()
        })
}

/// TEMPORARY.
pub(super) fn of_codes(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    Ok(weights(model)?.into_iter().find(|weight| weight.tensors[0].name == tensor.name))
}

/// The quantised weights of a model, in the order of the tensors that have their codes.
pub(super) fn weights(model: &Model<'_>) -> Result<Vec<Weight>> {
    let method = model.config.method.as_deref();
    let fits = |scheme: &&&dyn Scheme| {
        let methods = scheme.methods();
        methods.is_empty() || method.is_none_or(|method| methods.contains(&method))
    };
    let schemes: Vec<_> = SCHEMES.iter().filter(fits).collect();
    if let Some(method) = method
        && !schemes.iter().any(|scheme| scheme.methods().contains(&method))
    {
        return Err(unsupported(method, "the quant_method is not known"));
    }
    let mut weights = Vec::new();
    for tensor in model.tensors() {
        let tensor = &tensor;
        let mut found: Option<Weight> = None;
        for scheme in &schemes {
            let Some(weight) = scheme.weight(model, tensor)? else { continue };
            if let Some(other) = &found {
                return Err(ambiguous(tensor, other.scheme, weight.scheme));
            }
            found = Some(weight);
        }
        if found.is_none() && is_of_codes(model, tensor) {
            let reason = "this tensor of codes fits none of its forms";
            return Err(unsupported(method.unwrap_or("this name"), reason).in_tensor(&tensor.name));
        }
        weights.extend(found);
    }
    if !weights.is_empty() && model.config.has_transforms() {
        return Err(unsupported("compressed-tensors", "the weights are rotated"));
    }
    Ok(weights)
}
