//! The tensors of a module next to its quantised weight, after llama.cpp: which of them change the
//! numbers of the weight.

use std::collections::{HashMap, HashSet};

use safetensors_core::Dtype;

use super::header::Listed;
use crate::error::Quoted;
use crate::tensor_file::{Place, Scales};

/// How the name of a weight ends.
pub(super) const WEIGHT: &str = ".weight";

/// What a tensor of the module is for.
#[derive(Clone, Copy)]
enum Use {
    /// Something else than the weight.
    Itself,
    /// The activations, while the codes of the weight are multiplied.
    Activations,
    /// Its numbers multiply those of the weight: one number, or one for each expert.
    Scale,
}

/// Other parts are not known: they may change the weight.
const PARTS: [(&str, Use); 4] = [
    ("weight", Use::Itself),
    ("bias", Use::Itself),
    ("input_scale", Use::Activations),
    ("scale", Use::Scale),
];

fn purpose(part: &str) -> Option<Use> {
    PARTS.iter().find(|(name, _)| *name == part).map(|(_, purpose)| *purpose)
}

/// Whether a part of a module may change the numbers of its weight.
pub(super) fn changes(part: &str) -> bool {
    !matches!(purpose(part), Some(Use::Itself | Use::Activations))
}

/// Gives each quantised weight its scales, or the reason why it cannot be read, and removes the
/// tensors that are of no use next to numbers. The data begins at `start`.
pub(super) fn explain(tensors: &mut Vec<Listed>, start: u64) {
    let weights: HashMap<String, usize> = (tensors.iter().enumerate())
        .filter(|(_, tensor)| tensor.kind.is_some_and(|kind| kind.dequantize().is_some()))
        .filter_map(|(i, tensor)| Some((tensor.name.strip_suffix(WEIGHT)?.to_owned(), i)))
        .collect();
    let mut done = HashSet::new();
    for i in 0..tensors.len() {
        let name = tensors[i].name.as_str();
        let Some((module, part)) = name.rsplit_once('.') else { continue };
        let Some(&weight) = weights.get(module) else { continue };
        let problem = match purpose(part) {
            Some(Use::Itself) => continue,
            Some(Use::Activations) => None,
            Some(Use::Scale) => match scales(&tensors[i], &tensors[weight], start) {
                Ok(scales) => {
                    tensors[weight].scales = Some(scales);
                    None
                }
                Err(problem) => Some(problem),
            },
            None => Some(format!("it is not known what {} is for", Quoted(name))),
        };
        match problem {
            None => _ = done.insert(i),
            problem => tensors[weight].problem = problem,
        }
    }
    let mut i = 0..;
    tensors.retain(|_| i.next().is_none_or(|i| !done.contains(&i)));
}

/// The scales of a weight, which are in another tensor.
fn scales(scale: &Listed, weight: &Listed, start: u64) -> Result<Scales, String> {
    let experts = match *weight.shape {
        [experts, _, _] => experts,
        _ => 1,
    };
    let dtype = scale.kind.and_then(|kind| kind.dtype());
    let count = match *scale.shape {
        [] | [1] => 1,
        [count] if count == experts => count,
        _ => 0,
    };
    if count == 0 || dtype != Some(Dtype::F32) {
        let expected = if experts == 1 { "[1]".into() } else { format!("[1] or [{experts}]") };
        let (name, found, shape) = (Quoted(&scale.name), scale.type_name(), &scale.shape);
        return Err(format!("{name} should be F32 {expected}, found {found} {shape:?}"));
    }
    let elements = weight.shape.iter().fold(1, |all, &dim| all * dim as u64);
    let place = Place::At(start.saturating_add(scale.offset));
    Ok(Scales { place, each: elements / count as u64 })
}
