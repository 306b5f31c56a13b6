//! Compares the state of an optimizer with the module that it is restored for.
// burn panics at a state of a wrong shape or dtype.

use std::collections::BTreeMap;

use burn_store::burn_pack::Scalar;
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, Result};

use super::EpochError;
use super::container::{Content, Described};
use super::module::{Owners, Parameters};
use super::names::{NewIds, RANK, owners, split_id};
use super::states::TENSORS;
use crate::dtype;

/// Returns the ids that the parameters of a record have in the module. `model` is the record of the
/// module in the same epoch, and fits.
// A state of an id that the model lacks is dropped: its parameter has got another id, and burn
// never uses the state again.
//
// If the model has none of the ids, the optimizer may belong to another run. Its states are then
// compared by path, for a better error.
pub(super) fn new_ids(module: &Parameters, model: &Content, optimizer: &Content) -> Result<NewIds> {
    let ids = owners(optimizer);
    if ids.is_empty() {
        // The state of L-BFGS, for example, belongs to no parameter.
        return Ok(NewIds::default());
    }
    let mut mismatches = Vec::new();
    let mut owners = module.owners(model);
    owners.retain(|id, _| ids.contains(id));
    let in_use: BTreeMap<u64, u64> =
        owners.iter().map(|(id, (_, parameter))| (*id, parameter.id)).collect();
    compare_ties(&owners, &mut mismatches);
    if owners.is_empty() {
        for id in &ids {
            let path = optimizer.metadata.get(&id.to_string());
            match path.and_then(|path| module.get(path)) {
                Some(owner) => _ = owners.insert(*id, owner),
                None => {
                    let name = path.cloned().unwrap_or_else(|| id.to_string());
                    mismatches.push(Mismatch::Extra { name });
                }
            }
        }
    }
    for (name, tensor) in &optimizer.tensors {
        compare_tensor(name, tensor, &owners, &mut mismatches);
    }
    compare_ranks(optimizer, &owners, &mut mismatches);
    Mismatch::refuse(mismatches)?;
    if in_use.is_empty() {
        return Err(EpochError::NoStateInUse { found: ids.len() }.into());
    }
    Ok(ids.into_iter().map(|id| (id, in_use.get(&id).copied())).collect())
}

/// Finds states of several parameters that are one in the module.
fn compare_ties(owners: &Owners<'_>, mismatches: &mut Vec<Mismatch>) {
    let by_path: BTreeMap<&str, u64> = owners.values().map(|(path, p)| (*path, p.id)).collect();
    let mut paths = BTreeMap::new();
    for (path, id) in by_path {
        if let Some(other) = paths.insert(id, path) {
            mismatches.push(Mismatch::Tied { name: path.into(), other: other.into() });
        }
    }
}

fn compare_ranks(optimizer: &Content, owners: &Owners<'_>, mismatches: &mut Vec<Mismatch>) {
    for (id, (path, parameter)) in owners {
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
}

/// Compares a tensor with the parameter and path of its id in `owners`.
fn compare_tensor(
    name: &str,
    tensor: &Described,
    owners: &Owners<'_>,
    mismatches: &mut Vec<Mismatch>,
) {
    // burn looks for a tensor by the id that it has and by the name that begins with this id.
    let state = split_id(name).filter(|(id, _)| tensor.param_id == Some(*id));
    let Some((id, state)) = state else {
        return mismatches.push(Mismatch::Extra { name: name.into() });
    };
    // A state that nothing uses, or a mismatch that is listed already.
    let Some((path, parameter)) = owners.get(&id) else { return };
    let Some(expected) = shape_of(state, &parameter.shape) else { return };
    let name = format!("{path}.{state}");
    mismatches.extend(Mismatch::of_shapes(&name, &expected, &tensor.shape()));
    let found = dtype::to_file(tensor.dtype).ok();
    if let (Some(expected), Some(found)) = (parameter.dtype, found)
        && !is_dtype_of_state(expected, found)
    {
        mismatches.push(Mismatch::Dtype { name, expected, found });
    }
}

/// Returns nearly always the parameter's shape; `None` for other optimizers' tensors.
fn shape_of(state: &str, parameter: &[usize]) -> Option<Vec<usize>> {
    let mut shape = parameter.to_vec();
    let ndim = shape.len();
    match state {
        // Adafactor keeps means over the columns and the rows of a matrix.
        "second_moment" if ndim >= 2 => shape[ndim - 1] = 1,
        "column_second_moment" if ndim >= 2 => shape[ndim - 2] = 1,
        "column_second_moment" => return None,
        _ if TENSORS.contains(&state) => {}
        _ => return None,
    }
    Some(shape)
}

/// Accepts a state that is more precise than the parameter, as Adafactor keeps it.
pub(super) fn is_dtype_of_state(parameter: Dtype, state: Dtype) -> bool {
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
