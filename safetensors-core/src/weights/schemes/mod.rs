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

pub(crate) use companions::bare;

use std::collections::BTreeSet;

use super::matrix::Stored;
use super::model::{Model, Scheme, Weight, ambiguous, differing, unsupported};
use super::tensors::may_be_codes;
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

/// The weight whose codes are in a tensor; `None` if the tensor is a plain one, or a companion. A
/// tensor of several names may have its scales beside any of them: only these names count then.
pub(super) fn of_codes(model: &Model<'_>, tensor: &Stored) -> Result<Option<Weight>> {
    let aliases = if may_be_codes(tensor.dtype) { model.aliases(&tensor.name) } else { Vec::new() };
    let mut result: Option<Weight> = None;
    let described = |name: &&str| companions::has_companions(model, name);
    let names = [&*tensor.name].into_iter().chain(aliases.iter().map(String::as_str));
    let names: Vec<_> = names.filter(described).collect();
    if aliases.is_empty() || names.is_empty() {
        return of_name(model, tensor, &tensor.name);
    }
    let of_scales = |weight: &Weight| {
        let companions = weight.tensors.iter().skip(1).map(|tensor| tensor.name.clone());
        companions.collect::<BTreeSet<_>>()
    };
    for name in names {
        let Some(mut found) = of_name(model, tensor, name)? else { continue };
        found.name = like_weight(&tensor.name, name, &found.name);
        match &result {
            Some(other) if of_scales(other) != of_scales(&found) => {
                let all: Vec<_> = of_scales(other).union(&of_scales(&found)).cloned().collect();
                let (expected, all) = ("scales beside one of its names", all.join(" and "));
                return Err(differing(tensor, found.scheme, expected, all));
            }
            Some(_) => {}
            None => result = Some(found),
        }
    }
    Ok(result)
}

/// Another name of a weight: `b.weight` if its codes, `a.qweight` of `a.weight`, are also called
/// `b.qweight`.
pub(crate) fn like_weight(alias: &str, codes: &str, weight: &str) -> String {
    let same = codes.chars().zip(weight.chars()).take_while(|(a, b)| a == b);
    let same: usize = same.map(|(char, _)| char.len_utf8()).sum();
    match alias.strip_suffix(&codes[same..]) {
        Some(start) => format!("{start}{}", &weight[same..]),
        None => alias.to_owned(),
    }
}

/// The weight whose codes are in a tensor, by one of its names.
fn of_name(model: &Model<'_>, real: &Stored, name: &str) -> Result<Option<Weight>> {
    let tensor = &Stored { name: name.to_owned(), ..real.clone() };
    if !may_be_codes(tensor.dtype) && !has_floats_for_codes(model, tensor) {
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
    let Some(mut weight) = found else {
        return companions::unexplained(model, tensor, true).map(|()| None);
    };
    if model.config.has_transforms() {
        return Err(unsupported("compressed-tensors", "the weights are rotated"));
    }
    if let Some(codes) = weight.tensors.first_mut() {
        codes.name.clone_from(&real.name);
    }
    companions::explained(model, weight, name).map(Some)
}

/// Whether the floats of a tensor may be the bytes of codes, as bitsandbytes and HQQ store them.
fn has_floats_for_codes(model: &Model<'_>, tensor: &Stored) -> bool {
    let name = &tensor.name;
    let is_of_bits = |module| model.get(&format!("{module}.nbits")).is_some();
    name.strip_suffix(".W_q").is_some_and(is_of_bits)
        || matches!(tensor.shape[..], [_, 1])
            && bitsandbytes::states(name).iter().any(|state| model.get(state).is_some())
}
