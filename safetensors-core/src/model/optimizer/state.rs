//! [`OptimizerState`]: an optimizer's tensors by names of parameters.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use super::groups::Groups;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LoadOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, Mismatch, OptimizerProblem, Result};

const STEP: &str = "step";

// F64 counts up to this number without a gap.
const MOST_STEPS: u64 = 1 << 53;

/// By number or by name, each with the kinds of its tensors.
pub(super) struct Owners(BTreeMap<String, BTreeSet<String>>);

impl Owners {
    pub(super) fn read<S>(checkpoint: &Checkpoint<S>, prefix: &str) -> Result<Self> {
        let mut owners = BTreeMap::<_, BTreeSet<_>>::new();
        let mut mismatches = Vec::new();
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        for name in names.chain(checkpoint.aliases().map(|(alias, _)| alias)) {
            let Some(rest) = name.strip_prefix(prefix) else { continue };
            match rest
                .rsplit_once('.')
                .filter(|(owner, kind)| !owner.is_empty() && !kind.is_empty())
            {
                Some((owner, kind)) => {
                    _ = owners.entry(owner.into()).or_default().insert(kind.into())
                }
                None => mismatches.push(Mismatch::Extra { name: name.into() }),
            }
        }
        Mismatch::refuse(mismatches)?;
        if owners.is_empty() {
            let expected = format!("{prefix}0.exp_avg");
            return Err(OptimizerProblem::NoState { expected }.into());
        }
        Ok(Self(owners))
    }

    /// `None` if not all owners are numbers.
    pub(super) fn most(&self) -> Option<usize> {
        let numbers = self.0.keys().map(|owner| number(owner));
        numbers.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

/// Parses the one form that PyTorch writes.
fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| *number < usize::MAX && number.to_string() == text)
}

/// The state of an optimizer, by parameter.
/// [`PyTorchTraining::state`](super::PyTorchTraining::state) makes it.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    prefix: String,
    parameters: BTreeMap<String, ParameterState>,
    groups: Groups,
}

/// The state of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct ParameterState {
    /// With a dot at the end.
    prefix: String,
    kinds: BTreeSet<String>,
    steps: Option<u64>,
}

impl OptimizerState {
    pub(super) fn new<S: ReadAt>(
        checkpoint: &Checkpoint<S>,
        prefix: String,
        owners: Owners,
        names: &[String],
        groups: Groups,
    ) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        for (owner, kinds) in owners.0 {
            let prefix = format!("{prefix}{owner}.");
            // Never guessed. The model's tensors in the same file have another order as soon as
            // there are buffers, tied or frozen parameters, or groups; and the layers of a
            // transformer have the same shapes. Moments of another parameter raise no error and
            // only make the training worse.
            let named = number(&owner).and_then(|number| names.get(number)).cloned();
            let state = ParameterState { prefix, kinds, steps: None };
            parameters.insert(named.unwrap_or(owner), state);
        }
        read_steps(checkpoint, parameters.values_mut())?;
        Ok(Self { prefix, parameters, groups })
    }

    /// Returns the parameters that have a state, sorted by name.
    #[doc(hidden)]
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &ParameterState)> {
        self.parameters.iter().map(|(name, state)| (name.as_str(), state))
    }

    /// Returns the state of a parameter, if it has one.
    #[doc(hidden)]
    pub fn get(&self, parameter: &str) -> Option<&ParameterState> {
        self.parameters.get(parameter)
    }

    /// Returns the name of a tensor in the checkpoint, even if the parameter has no state.
    #[doc(hidden)]
    pub fn tensor(&self, parameter: &str, kind: &str) -> String {
        let prefix = self.get(parameter).map(|state| state.prefix.clone());
        let prefix = prefix.unwrap_or_else(|| format!("{}{parameter}.", self.prefix));
        format!("{prefix}{kind}")
    }

    /// Returns `true` if a tensor of the checkpoint belongs to the state.
    #[doc(hidden)]
    pub fn has(&self, tensor: &str) -> bool {
        tensor.starts_with(&self.prefix)
    }

    /// Returns the number of steps that all parameters made. `None` if the state has no steps.
    ///
    /// # Errors
    ///
    /// [`OptimizerProblem::StepsDiffer`], for example if some parameters did not get a gradient at
    /// each step.
    #[doc(hidden)]
    pub fn steps(&self) -> Result<Option<u64>> {
        let mut steps = self.parameters().filter_map(|(name, state)| Some((name, state.steps?)));
        let Some((name, first)) = steps.next() else { return Ok(None) };
        match steps.find(|(_, steps)| *steps != first) {
            None => Ok(Some(first)),
            Some((other, other_steps)) => {
                let name = name.into();
                let other = other.into();
                Err(OptimizerProblem::StepsDiffer { name, steps: first, other, other_steps }.into())
            }
        }
    }

    /// Returns a setting of the parameter groups, such as `lr`, for an optimizer that has one
    /// group. `None` if the checkpoint does not have it.
    ///
    /// # Errors
    ///
    /// [`OptimizerProblem::GroupsDiffer`] and [`OptimizerProblem::BadGroups`].
    pub fn setting<T: DeserializeOwned>(&self, setting: &'static str) -> Result<Option<T>> {
        self.groups.setting(setting)
    }
}

impl ParameterState {
    /// Returns the sorted kinds of its tensors, such as `exp_avg`, without the number of steps.
    #[doc(hidden)]
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().map(String::as_str).filter(|kind| *kind != STEP)
    }

    /// Returns the number of steps; `None` if the optimizer does not count them.
    #[doc(hidden)]
    pub fn steps(&self) -> Option<u64> {
        self.steps
    }
}

fn read_steps<'a, S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    states: impl Iterator<Item = &'a mut ParameterState>,
) -> Result<()> {
    let mut counted: Vec<_> = states.filter(|state| state.kinds.contains(STEP)).collect();
    let names: Vec<_> = counted.iter().map(|state| format!("{}{STEP}", state.prefix)).collect();
    let mut mismatches = Vec::new();
    for name in &names {
        let found = checkpoint.tensor(name)?.shape();
        if found.iter().any(|&dim| dim != 1) {
            let name = name.clone();
            let found = found.to_vec();
            mismatches.push(Mismatch::Shape { name, expected: Vec::new(), found });
        }
    }
    Mismatch::refuse(mismatches)?;
    let steps = checkpoint.read_named(&names, &LoadOptions::new().all_as(Dtype::F64))?;
    for ((state, name), step) in counted.iter_mut().zip(&names).zip(steps) {
        let found = step.as_slice::<f64>()?.first().copied().unwrap_or(f64::NAN);
        // A comparison that is false for a NaN.
        if !(found >= 0.0 && found <= MOST_STEPS as f64 && found.fract() == 0.0) {
            let problem = OptimizerProblem::BadStep { limit: MOST_STEPS, found };
            return Err(Error::from(problem).in_tensor(name));
        }
        state.steps = Some(found as u64);
    }
    Ok(())
}
