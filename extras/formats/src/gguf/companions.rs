//! Tensors next to a module's quantised weight, after llama.cpp: some change the weight's numbers.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::kinds::Type;
use super::listed::Listed;
use crate::error::Quoted;
use crate::tensor_file::{Place, Scales, TensorFile};

const WEIGHT: &str = ".weight";

/// Gives each quantised weight its scales, or a reason. Removes tensors that are then useless.
pub(super) fn explain(tensors: &mut Vec<Listed>) {
    let mut weights = BTreeMap::new();
    let mut others = Vec::new();
    for tensor in tensors.drain(..) {
        let module = tensor.name.strip_suffix(WEIGHT).map(str::to_owned);
        match module.filter(|_| tensor.kind.and_then(Type::blocks).is_some()) {
            Some(module) => _ = weights.insert(module, tensor),
            None => others.push(tensor),
        }
    }
    others.retain(|other| {
        let Some((module, part)) = other.name.rsplit_once('.') else { return true };
        let Some(weight) = weights.get_mut(module) else { return true };
        let scales = match part {
            "bias" => return true,
            // For activations, while the codes of the weight are multiplied.
            "input_scale" => return false,
            "scale" => scales(other, weight).map(Some),
            // It may change the weight.
            _ => Err(format!("it is not known what {} is for", Quoted(&other.name))),
        };
        let is_known = scales.is_ok();
        if weight.scales.is_ok() {
            weight.scales = scales;
        }
        !is_known
    });
    tensors.extend(others.into_iter().chain(weights.into_values()));
    tensors.sort_by_key(|tensor| tensor.at);
}

/// One number, or one for each expert.
fn scales(scale: &Listed, weight: &Listed) -> Result<Scales, String> {
    let experts = match *weight.shape {
        [experts, _, _] => experts.max(1),
        _ => 1,
    };
    let count = *scale.shape.first().unwrap_or(&1);
    let is_known = scale.shape.len() <= 1 && [1, experts].contains(&count);
    if !is_known || scale.kind != Some(Type::F32) {
        let expected = if experts == 1 { "[1]".into() } else { format!("[1] or [{experts}]") };
        let name = Quoted(&scale.name);
        let found = &scale.type_name;
        let shape = &scale.shape;
        return Err(format!("{name} should be F32 {expected}, found {found} {shape:?}"));
    }
    let elements: u64 = weight.shape.iter().map(|&dim| dim as u64).product();
    Ok(Scales { place: Place::At(scale.at), each: elements / count as u64 })
}

/// Finds such a tensor in another part of a split file.
pub(super) fn apart(files: &[(PathBuf, TensorFile)]) -> Option<(&Path, &str)> {
    let stored = files.iter().flat_map(|(_, file)| file.all_stored());
    let numbers = stored.filter(|(_, stored)| stored.is_readable);
    let modules: HashSet<_> = numbers.filter_map(|(name, _)| name.strip_suffix(WEIGHT)).collect();
    // Within one file, such a tensor is no longer listed, or its weight cannot be read.
    let changes = |name: &&str| {
        name.rsplit_once('.').is_some_and(|(module, part)| {
            modules.contains(module) && !matches!(part, "weight" | "bias" | "input_scale")
        })
    };
    files.iter().find_map(|(path, file)| Some((&**path, file.names().filter(changes).min()?)))
}
