//! The state of an optimizer in PyTorch's training checkpoints, by the names of the parameters.
//!
//! The modules `train` of the adapters load a file of `{"model": model.state_dict(), "optimizer":
//! optimizer.state_dict()}`, as [`PyTorchTraining`] describes it. Opened by `safetensors-formats`
//! or converted by `safetensors convert`, it has:
//!
//! | tensor | |
//! |---|---|
//! | `model.NAME` | a parameter or a buffer |
//! | `optimizer.state.NUMBER.exp_avg` | a tensor of the state of a parameter |
//! | `optimizer.state.NUMBER.step` | the number of steps that the parameter made; no dimensions |
//!
//! | metadata | |
//! |---|---|
//! | `optimizer.param_groups` | the settings of each group: `[{"lr": 0.001, …, "params": [0, 1]}]` |
//!
//! # From numbers to parameters
//!
//! A number is the position of a parameter in the groups of the optimizer. Unless the file has
//! names (`param_names`, PyTorch 2.6 and later), the caller gives them in that order, with
//! [`parameters`](PyTorchTraining::parameters). For `AdamW(model.parameters())` they are `[name for
//! name, _ in model.named_parameters()]`; the order of `model.state_dict()` differs. It is never
//! guessed: two parameters with the same shape would change places without a trace.
//!
//! PyTorch's distributed checkpoints have names, `optimizer.state.NAME.exp_avg`. A parameter that
//! never got a gradient has no state in PyTorch.

mod groups;
mod state;

use std::collections::BTreeSet;

use groups::Groups;
use state::Owners;
pub use state::{OptimizerState, ParameterState};

use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::format::error::{OptimizerProblem, Result};

/// Describes a training checkpoint of PyTorch: the places of the model and the optimizer, and the
/// parameter of each number.
///
/// ```
/// use safetensors_core::optimizer::PyTorchTraining;
/// use safetensors_core::{Checkpoint, SaveOptions, TensorBuf, serialize};
///
/// // What `torch.save({"model": …, "optimizer": …}, path)` has, after a conversion.
/// let tensors = [
///     ("model.head.weight", TensorBuf::from_vec(vec![2], vec![0.5_f32, 1.5])?),
///     ("optimizer.state.0.exp_avg", TensorBuf::from_vec(vec![2], vec![0.1_f32, 0.2])?),
///     ("optimizer.state.0.step", TensorBuf::from_vec(vec![], vec![3.0_f32])?),
/// ];
/// let groups = ("optimizer.param_groups", r#"[{"lr": 0.01, "params": [0]}]"#);
/// let bytes = serialize(
///     tensors.iter().map(|(name, tensor)| (name, tensor)),
///     &SaveOptions::new().metadata([groups]),
/// )?;
/// let checkpoint = Checkpoint::from_source(bytes, "training.safetensors")?;
///
/// let training = PyTorchTraining::new().parameters(["head.weight"]);
/// let state = training.state(&checkpoint)?;
/// assert_eq!(state.tensor("head.weight", "exp_avg"), "optimizer.state.0.exp_avg");
/// let head = state.get("head.weight").unwrap();
/// assert_eq!((head.steps(), state.setting::<f64>("lr")?), (Some(3), Some(0.01)));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyTorchTraining {
    model: String,
    optimizer: String,
    parameters: Vec<String>,
    decoupled: Option<bool>,
}

impl Default for PyTorchTraining {
    fn default() -> Self {
        Self::new()
    }
}

impl PyTorchTraining {
    /// Uses the keys `model` for the model, and `optimizer` for the optimizer.
    pub fn new() -> Self {
        let model = "model".into();
        let optimizer = "optimizer".into();
        Self { model, optimizer, parameters: Vec::new(), decoupled: None }
    }

    /// Sets the key of the model's `state_dict()`, such as `model_state_dict`, with dots between
    /// nested keys. An empty key is for a model that is the entire file.
    pub fn model(mut self, key: impl Into<String>) -> Self {
        self.model = key.into();
        self
    }

    /// Sets the key of the optimizer's `state_dict()`, like [`model`](Self::model).
    pub fn optimizer(mut self, key: impl Into<String>) -> Self {
        self.optimizer = key.into();
        self
    }

    /// Adds the names of the optimizer's parameters, in PyTorch's order, as the model to be loaded
    /// names them. They override `param_names` of the file.
    pub fn parameters<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.parameters.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets whether the weight decay is decoupled, as in `AdamW`, for groups that do not record it:
    /// PyTorch before 2.7 writes equal groups for `Adam`.
    pub fn decoupled_weight_decay(mut self, is_decoupled: bool) -> Self {
        self.decoupled = Some(is_decoupled);
        self
    }

    /// Returns the name of the model's parameter or buffer in the checkpoint.
    #[doc(hidden)]
    pub fn in_model(&self, name: &str) -> String {
        join(&self.model, name)
    }

    /// Returns `true` if a tensor of the checkpoint belongs to the model.
    #[doc(hidden)]
    pub fn is_of_model(&self, tensor: &str) -> bool {
        let is_below = |key: &str| tensor.starts_with(&join(key, ""));
        is_below(&self.model) && (!self.model.is_empty() || !is_below(&self.optimizer))
    }

    /// Finds the state of the optimizer, and reads only the numbers of steps.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Optimizer`](crate::ErrorKind::Optimizer) without a state, for a number without
    /// a parameter, and for groups of another state;
    /// [`ErrorKind::Mismatches`](crate::ErrorKind::Mismatches) for other tensors in the state.
    pub fn state<S: ReadAt>(&self, checkpoint: &Checkpoint<S>) -> Result<OptimizerState> {
        let state = || {
            let prefix = join(&self.optimizer, "state.");
            let mut groups = Groups::read(checkpoint, &join(&self.optimizer, "param_groups"))?;
            if let Some(is_decoupled) = self.decoupled {
                groups.complete("decoupled_weight_decay", is_decoupled.into());
            }
            let owners = Owners::read(checkpoint, &prefix)?;
            let names = self.names(&owners, &groups)?;
            OptimizerState::new(checkpoint, prefix, owners, &names, groups)
        };
        state().map_err(|error| checkpoint.in_first_path(error))
    }

    /// Returns names in order of the numbers; none if the checkpoint has names instead.
    fn names(&self, owners: &Owners, groups: &Groups) -> Result<Vec<String>> {
        let Some(most) = owners.most() else {
            return match self.parameters.as_slice() {
                [] => Ok(Vec::new()),
                _ => Err(OptimizerProblem::NamesNotNeeded.into()),
            };
        };
        // Without groups, the last parameter that has a state is the last one that is known.
        let found = groups.count().unwrap_or(most + 1);
        if most >= found {
            return Err(groups.bad("a list of groups that have every number of the state"));
        }
        let names = match (self.parameters.as_slice(), groups.names()) {
            ([], None) => return Err(OptimizerProblem::NoNames { found }.into()),
            ([], Some(names)) => names,
            (names, _) => names,
        };
        if names.len() != found {
            let expected = names.len();
            return Err(OptimizerProblem::NumberOfNames { expected, found }.into());
        }
        let mut seen = BTreeSet::new();
        match names.iter().find(|name| !seen.insert(name.as_str())) {
            Some(name) => Err(OptimizerProblem::DuplicateName { name: name.clone() }.into()),
            None => Ok(names.to_vec()),
        }
    }
}

fn join(key: &str, name: &str) -> String {
    if key.is_empty() { name.into() } else { format!("{key}.{name}") }
}
