//! [`load_pytorch_optimizer`]: a record of the state of a PyTorch optimizer.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::TensorData;
use burn_store::burn_pack::Scalar;
#[cfg(doc)]
use safetensors_core::ErrorKind;
use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::framework::Framework;
use safetensors_core::optimizer::{OptimizerState, PyTorchTraining};
use safetensors_core::{Checkpoint, Dtype, LazyTensor, LoadOptions, ReadAt, Result};

use super::super::container::{Content, Described};
use super::super::module::{Parameter, Parameters};
use super::super::names::RANK;
use super::super::state::is_dtype_of_state;
use super::super::states;
use super::{Kind, Kinds, OPTIMIZERS};
use crate::Burn;
use crate::pytorch::{StoredParameter, take};

/// Makes a record of the state of a PyTorch optimizer, to continue a training of PyTorch with
/// burn's `load_record`. The formulas are the same.
///
/// | PyTorch | burn | content of the record |
/// |---|---|---|
/// | `AdamW`, `Adam`, also with `amsgrad` | `AdamWConfig`, `AdamConfig` | moments, number of steps |
/// | `SGD` with `momentum` | `SgdConfig` with `MomentumConfig` | velocities |
/// | `Adafactor` | `AdafactorConfig` | means of the squares of gradients, number of steps |
///
/// - Names and shapes follow [PyTorch's layers](crate::pytorch#layers). If the module has other
///   names than PyTorch's model, give the module's in [`PyTorchTraining::parameters`].
/// - burn's records have no settings. Set all of them; [`OptimizerState::setting`] has the
///   checkpoint's. burn's defaults differ: for `AdamWConfig` the epsilon (1e-5, not 1e-8) and the
///   weight decay (1e-4, not 1e-2); for `MomentumConfig` the dampening (0.1, not 0). PyTorch's
///   `Adafactor` computes the same as burn's only with `eps=(1e-30, 1e-3)`. Groups with other
///   settings are burn's `with_group`.
/// - Every parameter that is trained needs a state, and every state a parameter. On a device
///   without autodiff, all tensors of the module count as trained.
/// - Load the model with [`CheckpointStore::pytorch`](crate::CheckpointStore::pytorch), before or
///   after, as long as its parameters keep their ids.
/// - A distributed checkpoint (DCP), which [`Checkpoint::open`] opens, has names instead of
///   numbers. It needs no [`PyTorchTraining::parameters`].
///
/// ```no_run
/// use burn::module::Module;
/// use burn::optim::{AdamWConfig, ModuleOptimizer};
/// use safetensors_burn::train::load_pytorch_optimizer;
/// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
/// use safetensors_core::Checkpoint;
/// use safetensors_core::optimizer::PyTorchTraining;
///
/// fn go_on<M: ModuleSnapshot>(model: &mut M) -> safetensors_core::Result<ModuleOptimizer> {
///     // `safetensors convert checkpoint.pt checkpoint.safetensors` has made it.
///     let path = "checkpoint.safetensors";
///     let store = CheckpointStore::from_file(path).pytorch(true);
///     model.load_from(&mut store.with_key_remapping(r"^model\.", ""))?;
///
///     // `[name for name, _ in model.named_parameters()]`, for AdamW(model.parameters()).
///     let names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
///     let training = PyTorchTraining::new().parameters(names);
///     let record = load_pytorch_optimizer(model, &Checkpoint::open(path)?, &training)?;
///     let config = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(1e-2);
///     Ok(config.init().load_record(record))
/// }
/// ```
///
/// # Errors
///
/// [`ErrorKind::Mismatches`] with all differences from the module;
/// [`OptimizerProblem::UnknownOptimizer`] in an [`ErrorKind::Optimizer`].
pub fn load_pytorch_optimizer<S: ReadAt>(
    module: &impl Module,
    checkpoint: &Checkpoint<S>,
    training: &PyTorchTraining,
) -> Result<OptimizerRecord> {
    let state = training.state(checkpoint)?;
    let module = Parameters::new(module);
    let plan = OptimizerPlan::new(&state, checkpoint, &module);
    let record = plan.and_then(OptimizerPlan::read);
    record.map_err(|error| checkpoint.in_first_path(error))
}

/// Its id in burn, and its path in the module.
struct Owner<'a> {
    id: u64,
    path: &'a str,
    parameter: &'a Parameter,
    stored: StoredParameter,
}

struct OptimizerPlan<'a, S> {
    state: &'a OptimizerState,
    checkpoint: &'a Checkpoint<S>,
    /// The name in the checkpoint and how it stores the value; the name in the record, and the id
    /// of the parameter.
    tensors: Vec<(String, StoredParameter, String, u64)>,
    /// The content, without tensors until they are read.
    content: Content,
    mismatches: Vec<Mismatch>,
}

impl<'a, S: ReadAt> OptimizerPlan<'a, S> {
    fn new(
        state: &'a OptimizerState,
        checkpoint: &'a Checkpoint<S>,
        module: &Parameters,
    ) -> Result<Self> {
        let mut plan = Self {
            state,
            checkpoint,
            tensors: Vec::new(),
            content: Content::default(),
            mismatches: Vec::new(),
        };
        plan.compare(module)?;
        Mismatch::refuse(std::mem::take(&mut plan.mismatches))?;
        Ok(plan)
    }

    fn compare(&mut self, module: &Parameters) -> Result<()> {
        let mut used = BTreeSet::new();
        for (id, paths) in module.by_id() {
            let owners = paths.iter().filter_map(|&(path, parameter)| {
                let mut ways = parameter.stored_as().into_iter();
                let stored = ways.find(|stored| self.state.get(&stored.tensor).is_some())?;
                Some(Owner { id, path, parameter, stored })
            });
            // PyTorch has the state of a tied parameter under one of its names.
            let owners: Vec<_> = owners.collect();
            used.extend(owners.iter().map(|owner| owner.stored.tensor.clone()));
            match (owners.first(), paths.first()) {
                (Some(owner), _) => self.add(owner)?,
                (None, Some((_, parameter))) if parameter.is_trained => {
                    let ways = parameter.stored_as().into_iter().take(1);
                    let names = ways.map(|stored| self.state.tensor(&stored.tensor, "exp_avg"));
                    self.mismatches.extend(names.map(|name| Mismatch::Missing { name }));
                }
                _ => {}
            }
        }
        for (name, unused) in self.state.parameters().filter(|(name, _)| !used.contains(*name)) {
            let names = unused.kinds().map(|kind| self.state.tensor(name, kind));
            self.mismatches.extend(names.map(|name| Mismatch::Extra { name }));
        }
        Ok(())
    }

    fn add(&mut self, owner: &Owner<'_>) -> Result<()> {
        let &Owner { id, path, parameter, ref stored } = owner;
        let Some(of) = self.state.get(&stored.tensor) else { return Ok(()) };
        let named = |kind: &str| self.state.tensor(&stored.tensor, kind);
        let has_kind = |kind: &str| of.kinds().any(|found| found == kind);
        let has = |kinds: &&Kinds| {
            let mut kinds_of = kinds.tensors.iter().map(|kind| kind.pytorch);
            kinds.fit(parameter.shape.len(), stored) && kinds_of.any(&has_kind)
        };
        let Some(Kinds { tensors, steps, .. }) = OPTIMIZERS.iter().find(has) else {
            let found = of.kinds().map(String::from).collect();
            let name = stored.tensor.clone();
            return Err(OptimizerProblem::UnknownOptimizer { name, found }.into());
        };
        for kind in *tensors {
            let name = named(kind.pytorch);
            if has_kind(kind.pytorch) {
                let tensor = self.checkpoint.tensor(&name)?;
                self.mismatches.extend(differences(&tensor, kind, parameter, stored));
                let in_record = format!("{id}.{}", kind.burn);
                self.tensors.push((name, stored.clone(), in_record, id));
            } else if kind.is_needed {
                self.mismatches.push(Mismatch::Missing { name });
            }
        }
        let others = of.kinds().filter(|found| tensors.iter().all(|kind| kind.pytorch != *found));
        self.mismatches.extend(others.map(|kind| Mismatch::Extra { name: named(kind) }));
        match (steps, of.steps()) {
            (Some(time), Some(steps)) => {
                let name = format!("{id}.{time}");
                self.content.scalars.insert(name, Scalar::UInt(steps));
            }
            (Some(_), None) => self.mismatches.push(Mismatch::Missing { name: named("step") }),
            (None, _) => {}
        }
        let rank = Scalar::UInt(parameter.shape.len() as u64);
        self.content.scalars.insert(format!("{id}.{RANK}"), rank);
        self.content.metadata.insert(id.to_string(), path.into());
        Ok(())
    }

    fn read(self) -> Result<OptimizerRecord> {
        let names: BTreeSet<&String> = self.tensors.iter().map(|(name, ..)| name).collect();
        let options = LoadOptions::new().for_framework::<Burn>();
        let bufs = self.checkpoint.read_named(&names, &options)?;
        let data =
            bufs.into_iter().map(|buf| Burn::from_exact(buf, &())).collect::<Result<Vec<_>>>()?;
        let data: BTreeMap<&String, TensorData> = names.into_iter().zip(data).collect();
        let mut content = self.content;
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (name, stored, in_record, id) in &self.tensors {
            let Some(whole) = data.get(name) else { continue };
            let value = take(whole.clone(), stored);
            let described = Described::new(value.dtype(), value.shape(), Some(*id));
            content.tensors.insert(in_record.clone(), described);
            tensors.push((in_record.clone(), value));
        }
        states::make(&content, tensors)
    }
}

fn differences<S>(
    tensor: &LazyTensor<'_, S>,
    kind: &Kind,
    parameter: &Parameter,
    stored: &StoredParameter,
) -> impl Iterator<Item = Mismatch> {
    let mut expected = stored.shape_in_file(&parameter.shape.clone().into()).to_vec();
    let mean = kind.mean.and_then(|dim| expected.iter_mut().rev().nth(dim - 1));
    if let Some(mean) = mean {
        *mean = 1;
    }
    let shapes = Mismatch::of_shapes(tensor.name(), &expected, tensor.shape());
    let expected = parameter.dtype.unwrap_or(Dtype::F32);
    let found = tensor.dtype();
    let dtypes = (!is_dtype_of_state(expected, found)).then(|| Mismatch::Dtype {
        name: tensor.name().into(),
        expected,
        found,
    });
    shapes.into_iter().chain(dtypes)
}
