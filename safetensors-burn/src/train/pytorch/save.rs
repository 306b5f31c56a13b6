//! [`save_pytorch_optimizer`]: the record of an optimizer, as PyTorch has it.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, TensorData};
use burn_store::burn_pack::Scalar;
use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::{Error, ErrorKind, Result, SaveOptions};

use super::super::module::Parameters;
use super::super::names::{RANK, split_id};
use super::super::unpacked::Unpacked;
use super::OPTIMIZERS;
use crate::load::from_bytes;
use crate::pytorch::{StoredParameter, put};
use crate::store::pack::into_data;

/// The largest count that F32 has without a gap.
const MOST_STEPS: u64 = 1 << 24;

/// Saves the record of an optimizer for PyTorch: `state.NAME.exp_avg` and so on, with PyTorch's
/// names and shapes of the parameters, and `state.NAME.step`.
///
/// [`load_pytorch_optimizer`](super::load_pytorch_optimizer) reads it with
/// `PyTorchTraining::new().optimizer("")`, and lists the optimizers. Save the model with
/// [`CheckpointStore::pytorch`](crate::CheckpointStore::pytorch). A tied parameter has its state
/// under each of its names. States of ids that the module does not have are skipped.
///
/// ```no_run
/// use burn::optim::ModuleOptimizer;
/// use safetensors_burn::train::save_pytorch_optimizer;
/// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
/// use safetensors_core::{Result, SaveOptions};
///
/// fn back<M: ModuleSnapshot>(model: &M, optimizer: &ModuleOptimizer) -> Result<()> {
///     model.save_into(&mut CheckpointStore::from_file("model.safetensors").pytorch(true))?;
///     let record = optimizer.to_record();
///     save_pytorch_optimizer("optimizer.safetensors", model, record, &SaveOptions::new())
/// }
/// ```
///
/// PyTorch loads the two files into an optimizer that was made with its settings:
///
/// ```python
/// model.load_state_dict(load_file("model.safetensors"))
/// tensors = load_file("optimizer.safetensors")
/// names = [name for name, _ in model.named_parameters()]  # the optimizer's order
/// state = {name: {} for name in names}
/// for key, tensor in tensors.items():
///     name, kind = key.removeprefix("state.").rsplit(".", 1)
///     if name in state:
///         state[name][kind] = tensor
/// assert all(state.values())
/// [group] = optimizer.state_dict()["param_groups"]
/// group["params"] = names
/// optimizer.load_state_dict({"state": state, "param_groups": [group]})
/// ```
///
/// # Errors
///
/// [`OptimizerProblem::UnknownOptimizer`] for another optimizer, [`OptimizerProblem::NoState`] if
/// the module has no parameter of the record's states, and [`OptimizerProblem::BadStep`] for more
/// steps than F32 counts, in an [`ErrorKind::Optimizer`]; [`ErrorKind::Mismatches`] if only a part
/// of the parameters that PyTorch has in one tensor has a state.
pub fn save_pytorch_optimizer(
    path: impl AsRef<Path>,
    module: &impl Module,
    record: OptimizerRecord,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let tensors = for_pytorch(&Parameters::new(module), record);
    let tensors = tensors.map_err(|error| error.in_path(path))?;
    crate::save(path, &tensors, options)
}

/// PyTorch's parameters by burn's ids. A tied one has several.
type Names = BTreeMap<u64, Vec<StoredParameter>>;

fn for_pytorch(
    module: &Parameters,
    record: OptimizerRecord,
) -> Result<BTreeMap<String, TensorData>> {
    let record = Unpacked::unpack(record, None)?;
    let names = module.by_id().into_iter().map(|(id, paths)| {
        let ways =
            paths.iter().filter_map(|(_, parameter)| parameter.stored_as().into_iter().next());
        (id, ways.collect())
    });
    let names: Names = names.collect();
    let mut tensors = steps(&names, &record.content.scalars)?;
    let mut whole: BTreeMap<String, Vec<Option<TensorData>>> = BTreeMap::new();
    for (name, tensor) in record.tensors {
        let Some((ways, leaf)) = state_of(&names, &name) else { continue };
        let value = into_data(tensor)?;
        for stored in ways {
            let kinds = OPTIMIZERS.iter().filter(|kinds| kinds.fit(value.shape().len(), stored));
            let mut kinds = kinds.flat_map(|kinds| kinds.tensors);
            let kind = kinds.find(|kind| kind.burn == leaf).ok_or_else(|| unknown(ways, leaf))?;
            let parts = whole.entry(format!("state.{}.{}", stored.tensor, kind.pytorch));
            let parts = parts.or_insert_with(|| vec![None; stored.parts]);
            if let Some(part) = parts.get_mut(stored.part) {
                *part = Some(put(value.clone(), stored));
            }
        }
    }
    let mut mismatches = Vec::new();
    for (name, parts) in whole {
        match parts.into_iter().collect::<Option<Vec<_>>>() {
            Some(parts) => _ = tensors.insert(name, joined(parts)?),
            None => mismatches.push(Mismatch::Missing { name }),
        }
    }
    Mismatch::refuse(mismatches)?;
    if tensors.is_empty() {
        let name = names.values().flatten().next().map_or("", |stored| &stored.tensor);
        return Err(OptimizerProblem::NoState { expected: format!("state.{name}.exp_avg") }.into());
    }
    Ok(tensors)
}

fn steps(
    names: &Names,
    scalars: &BTreeMap<String, Scalar>,
) -> Result<BTreeMap<String, TensorData>> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, scalar) in scalars {
        let Some((ways, leaf)) = state_of(names, name) else { continue };
        if leaf == RANK {
            continue;
        }
        let is_time = OPTIMIZERS.iter().any(|kinds| kinds.steps == Some(leaf));
        let &Scalar::UInt(steps) = scalar else { return Err(unknown(ways, leaf)) };
        if !is_time {
            return Err(unknown(ways, leaf));
        }
        if steps > MOST_STEPS {
            return Err(OptimizerProblem::BadStep { limit: MOST_STEPS, found: steps as f64 }.into());
        }
        for stored in ways {
            let first = *counts.entry(&stored.tensor).or_insert(steps);
            if first != steps {
                return Err(OptimizerProblem::StepsDiffer {
                    name: stored.tensor.clone(),
                    steps: first,
                    other: stored.tensor.clone(),
                    other_steps: steps,
                }
                .into());
            }
        }
    }
    let tensors = counts.into_iter().map(|(name, steps)| {
        (format!("state.{name}.step"), TensorData::new(vec![steps as f32], [0_usize; 0]))
    });
    Ok(tensors.collect())
}

/// Returns `None` if the module lacks the parameter.
fn state_of<'a>(names: &'a Names, name: &'a str) -> Option<(&'a [StoredParameter], &'a str)> {
    let (id, leaf) = split_id(name)?;
    Some((names.get(&id)?, leaf))
}

fn joined(mut parts: Vec<TensorData>) -> Result<TensorData> {
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    let mut shape = parts[0].shape().to_vec();
    let dtype = parts[0].dtype();
    let unlike = parts.iter().find(|part| part.shape()[..] != shape || part.dtype() != dtype);
    if let Some(unlike) = unlike {
        let found = unlike.shape().to_vec();
        return Err(ErrorKind::WrongShape { expected: shape, found }.into());
    }
    if let Some(rows) = shape.first_mut() {
        *rows *= parts.len();
    }
    let bytes = parts.iter().flat_map(|part| part.as_bytes().iter().copied()).collect();
    from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype)
}

fn unknown(ways: &[StoredParameter], leaf: &str) -> Error {
    let name = ways.first().map_or_else(String::new, |stored| stored.tensor.clone());
    OptimizerProblem::UnknownOptimizer { name, found: vec![leaf.into()] }.into()
}
