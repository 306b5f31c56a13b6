//! The state of an optimizer, compared with the module that it is restored for.
//!
//! burn looks the state of a parameter up by the parameter's id, and trusts what it finds. A state
//! of another shape or dtype ends in a panic at the next step. A state under an id that the module
//! does not have is never used.

use std::collections::{BTreeMap, BTreeSet};

use burn_store::burn_pack::Scalar;
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, ErrorKind, Result};

use super::EpochError;
use super::container::{Content, Described};
use super::module::{Parameter, Parameters};
use super::names::{NewIds, parse_id};
use crate::dtype;

/// The scalar in which burn keeps the number of dimensions of a parameter.
const RANK: &str = "__rank";

/// The tensors of burn's optimizers that have the shape of their parameter. The state of any other
/// optimizer may have any shape.
const OF_SAME_SHAPE: [&str; 16] = [
    // AdaGrad
    "lr_decay.sum",
    // Adam and AdamW
    "momentum.moment_1",
    "momentum.moment_2",
    "momentum.max_moment_2",
    // Adan
    "momentum.exp_avg",
    "momentum.exp_avg_sq",
    "momentum.exp_avg_diff",
    "momentum.neg_pre_grad",
    // LAMB
    "moment_1",
    "moment_2",
    // Lion
    "momentum",
    // Muon and SGD
    "momentum.velocity",
    // RMSprop
    "square_avg.square_avg",
    "centered.avg",
    "centered.grad_avg",
    "momentum.buf",
];

/// Compares the record of an optimizer with a module, and returns the ids that its parameters have
/// in the module. `model` is the record of the module in the same epoch, which fits the module.
///
/// Parameters are found by the paths that the model of the epoch has for their ids. Ids that it
/// does not have are found by the paths that the optimizer has for them.
///
/// # Errors
///
/// [`ErrorKind::Mismatches`] with all differences; [`EpochError::SeveralStates`].
pub(super) fn new_ids(module: &Parameters, model: &Content, optimizer: &Content) -> Result<NewIds> {
    let ids = ids(optimizer);
    if ids.is_empty() {
        // The state of L-BFGS, for example, belongs to no parameter.
        return Ok(NewIds::default());
    }
    let in_model = paths_in_model(model);
    let mut mismatches = Vec::new();
    let mut by_path: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for id in ids {
        let recorded = optimizer.metadata.get(&id.to_string()).map(String::as_str);
        let path = match in_model.get(&id) {
            // A tied parameter has several paths.
            Some(paths) => recorded.filter(|path| paths.contains(path)).or(paths.first().copied()),
            None => recorded,
        };
        match path {
            Some(path) if module.get(path).is_some() => by_path.entry(path).or_default().push(id),
            _ => {
                let name = path.map_or_else(|| id.to_string(), String::from);
                mismatches.push(Mismatch::Extra { name });
            }
        }
    }
    let mut new_ids = Vec::new();
    let mut used: BTreeMap<u64, &str> = BTreeMap::new();
    let mut owners = BTreeMap::new();
    for (path, ids) in by_path {
        let Some(parameter) = module.get(path) else { continue };
        let is_known = |id: &&u64| ids.len() == 1 || in_model.contains_key(*id);
        let known: Vec<u64> = ids.iter().filter(is_known).copied().collect();
        let [kept] = known[..] else {
            return Err(EpochError::SeveralStates { path: path.into(), ids }.into());
        };
        // The parameter had the other ids before it got this one. Nothing uses their states.
        new_ids.extend(ids.iter().map(|id| (*id, (*id == kept).then_some(parameter.id))));
        if let Some(other) = used.insert(parameter.id, path) {
            mismatches.push(Mismatch::Tied { name: path.into(), other: other.into() });
        }
        owners.insert(kept, (path, parameter));
    }
    let new_ids: NewIds = new_ids.into_iter().collect();
    for (name, tensor) in &optimizer.tensors {
        if new_ids.rename(name).is_some() {
            compare_tensor(name, tensor, &owners, &mut mismatches);
        }
    }
    for (id, (path, parameter)) in &owners {
        let found = optimizer.scalars.get(&format!("{id}.{RANK}"));
        let rank = found.and_then(|found| usize::try_from(*found).ok());
        if rank != Some(parameter.shape.len()) {
            mismatches.push(Mismatch::Metadata {
                key: format!("{path}.{RANK}"),
                expected: "the number of dimensions of the parameter",
                found: found.map(text),
            });
        }
    }
    if mismatches.is_empty() {
        Ok(new_ids)
    } else {
        Err(ErrorKind::Mismatches { mismatches }.into())
    }
}

/// The ids of the parameters that a record has a state of.
fn ids(optimizer: &Content) -> BTreeSet<u64> {
    let of_tensors = optimizer.tensors.values().filter_map(|tensor| tensor.param_id);
    let of_scalars = optimizer.scalars.keys().filter_map(|name| {
        let (first, rest) = name.split_once('.')?;
        parse_id(first).filter(|_| rest == RANK)
    });
    of_tensors.chain(of_scalars).collect()
}

/// The paths of each parameter in the record of a module, by its id.
fn paths_in_model(model: &Content) -> BTreeMap<u64, Vec<&str>> {
    let mut paths: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (path, tensor) in &model.tensors {
        if let Some(id) = tensor.param_id {
            paths.entry(id).or_default().push(path);
        }
    }
    paths
}

/// Compares a tensor of the state with its parameter. `owners` has the path and the parameter of
/// each id.
fn compare_tensor(
    name: &str,
    tensor: &Described,
    owners: &BTreeMap<u64, (&str, &Parameter)>,
    mismatches: &mut Vec<Mismatch>,
) {
    // burn looks for a tensor by the id that it has and by the name that begins with this id.
    let parts = name.split_once('.').and_then(|(first, rest)| Some((parse_id(first)?, rest)));
    let state = parts.filter(|(id, _)| tensor.param_id == Some(*id));
    let Some((id, state)) = state else {
        return mismatches.push(Mismatch::Extra { name: name.into() });
    };
    // An id without a parameter is a mismatch already.
    let Some((path, parameter)) = owners.get(&id) else { return };
    let Some(expected) = shape_of(state, &parameter.shape) else { return };
    let name = format!("{path}.{state}");
    let found = tensor.shape();
    if found != expected {
        mismatches.push(Mismatch::Shape { name: name.clone(), expected, found });
    }
    let found = dtype::to_file(tensor.dtype).ok();
    if let (Some(expected), Some(found)) = (parameter.dtype, found)
        && !is_dtype_of_state(expected, found)
    {
        mismatches.push(Mismatch::Dtype { name, expected, found });
    }
}

/// The shape that a tensor of the state of one of burn's optimizers has; `None` for any other
/// tensor.
fn shape_of(state: &str, parameter: &[usize]) -> Option<Vec<usize>> {
    let mut shape = parameter.to_vec();
    let ndim = shape.len();
    match state {
        // Adafactor keeps means over the columns and the rows of a matrix.
        "second_moment" if ndim >= 2 => shape[ndim - 1] = 1,
        "column_second_moment" if ndim >= 2 => shape[ndim - 2] = 1,
        "second_moment" => {}
        _ if OF_SAME_SHAPE.contains(&state) => {}
        _ => return None,
    }
    Some(shape)
}

/// Whether the state of a parameter may have this dtype. An optimizer may keep its state more
/// precisely than the parameter, as Adafactor does.
fn is_dtype_of_state(parameter: Dtype, state: Dtype) -> bool {
    state == parameter || (state == Dtype::F32 && matches!(parameter, Dtype::F16 | Dtype::BF16))
}

fn text(scalar: &Scalar) -> String {
    match scalar {
        Scalar::UInt(number) => number.to_string(),
        Scalar::Int(number) => number.to_string(),
        Scalar::Float(number) => number.to_string(),
        Scalar::Bool(value) => value.to_string(),
    }
}
