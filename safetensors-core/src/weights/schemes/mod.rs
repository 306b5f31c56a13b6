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

pub(crate) use companions::{LAYERS, TENSOR_NAMES, bare};

use super::matrix::Stored;
use super::model::{Candidate, Model, Weight, ambiguous, not_explained, unsupported};
use super::tensors::may_be_codes;
use crate::format::error::Result;

/// The name, the values of `quant_method`, and the function. A scheme without any value marks its
/// weights in the files, and is looked for with any settings.
type Scheme = (&'static str, &'static [&'static str], Find);

type Find = fn(&Candidate<'_>) -> Result<Option<Weight>>;

// Refused schemes come first, because some have the names of others.
const SCHEMES: &[Scheme] = &[
    ("", &[], refused::find),
    (
        "fp8",
        &["fp8", "mxfp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "quark", "auto-round"],
        scaled::find,
    ),
    (
        "FP4 with scales",
        &["compressed-tensors", "modelopt", "quark", "mxfp4", "mxfp8", "fp8", "auto-round"],
        fp4::find,
    ),
    ("packed integers", &["compressed-tensors", "modelopt", "auto-round"], packed::find),
    ("GPTQ", &["gptq", "auto-round"], gptq::find),
    ("AWQ", &["awq", "auto-round"], awq::find),
    ("bitsandbytes", &["bitsandbytes"], bitsandbytes::find),
    ("ComfyUI", &[], comfy::find),
    ("torchao", &["torchao"], torchao::find),
    ("HQQ", &["hqq"], hqq::find),
    ("Quanto", &["quanto"], quanto::find),
    ("MLX", &["mlx", "metal"], mlx::find),
    ("Gemma's packed integers", &["gemma"], gemma::find),
];

pub(super) fn weights(model: &Model<'_>) -> Result<Vec<Weight>> {
    let mut weights = Vec::new();
    for tensor in model.tensors() {
        weights.extend(of_codes(model, &tensor)?);
    }
    companions::check_marks(model, &weights)?;
    Ok(weights)
}

/// Returns `None` for a plain tensor, or a companion.
pub(super) fn of_codes(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    if !may_be_codes(tensor.dtype) && !has_floats_for_codes(model, tensor) {
        return Ok(None);
    }
    let method = model.config.method.as_deref();
    let is_known =
        method.is_none_or(|m| SCHEMES.iter().any(|(_, methods, _)| methods.contains(&m)));
    // Its companions may belong to another of its names.
    let aliases = model.tensors.aliases(&tensor.name).into_iter();
    let aliases = aliases.map(|name| Stored { name, ..tensor.clone() });
    let names: Vec<_> = [tensor.clone()].into_iter().chain(aliases).collect();
    let mut found = None::<(&Stored, Weight)>;
    let mut failed = None;
    for named in &names {
        match (by_schemes(model, named), &found) {
            (Ok(Some(weight)), None) => found = Some((named, weight)),
            (Ok(Some(weight)), Some((_, first))) => {
                let is_new = |it: &&Stored| first.tensors.iter().all(|other| other.name != it.name);
                if let Some(other) = weight.tensors.iter().skip(1).find(is_new) {
                    let error = not_explained(first.scheme, &other.name);
                    return Err(error.in_tensor(&tensor.name));
                }
            }
            (Err(error), None) => failed = failed.or(Some(error)),
            _ => {}
        }
    }
    let Some((named, mut weight)) = found else {
        return match failed {
            Some(error) => Err(error),
            None => names.iter().try_for_each(|it| companions::unexplained(model, it, is_known)),
        }
        .map(|()| None);
    };
    if model.config.has_transforms() {
        let error = unsupported("compressed-tensors", "the weights are rotated");
        return Err(error.in_tensor(&tensor.name));
    }
    if named.name != tensor.name {
        weight.name = companions::name_of_weight(&tensor.name);
        weight.tensors[0].name.clone_from(&tensor.name);
    }
    companions::explained(model, weight, &names).map(Some)
}

fn by_schemes(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    let method = model.config.method.as_deref();
    let may_be = |(_, methods, _): &&Scheme| {
        methods.is_empty() || method.is_none_or(|method| methods.contains(&method))
    };
    let mut found: Option<Weight> = None;
    for &(scheme, _, find) in SCHEMES.iter().filter(may_be) {
        let Some(weight) = find(&Candidate { scheme, model, tensor })? else { continue };
        if let Some(other) = &found {
            return Err(ambiguous(tensor, other.scheme, weight.scheme));
        }
        found = Some(weight);
    }
    Ok(found)
}

/// Returns `true` if floats may be bytes of codes, as of bitsandbytes and HQQ.
fn has_floats_for_codes(model: &Model<'_>, tensor: &Stored) -> bool {
    let name = &tensor.name;
    let is_of_bits = |module| model.get(&format!("{module}.nbits")).is_some();
    name.strip_suffix(".W_q").is_some_and(is_of_bits)
        || matches!(tensor.shape[..], [_, 1])
            && bitsandbytes::companions(name).iter().any(|state| model.get(state).is_some())
}
