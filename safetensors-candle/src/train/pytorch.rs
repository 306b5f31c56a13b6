//! [`Source`]: a training checkpoint of PyTorch, as far as a load needs it.

use candle_nn::ParamsAdamW;
use safetensors_core::error::{Mismatch, OptimizerProblem};
use safetensors_core::optimizer::{OptimizerState, PyTorchTraining};
use safetensors_core::{Checkpoint, ReadAt, Result};

use super::AdamW;
use super::state::KINDS;
use super::values::TensorSlot;

/// The most steps that candle's formula can take.
const MOST_STEPS: u64 = i32::MAX as u64;

pub(super) struct Source<'a> {
    training: &'a PyTorchTraining,
    with_model: bool,
    state: Option<OptimizerState>,
}

impl<'a> Source<'a> {
    /// Finds the state of the optimizer, if it is loaded.
    pub(super) fn find<S: ReadAt>(
        training: &'a PyTorchTraining,
        checkpoint: &Checkpoint<S>,
        with_model: bool,
        with_optimizer: bool,
    ) -> Result<Self> {
        let state = with_optimizer.then(|| training.state(checkpoint)).transpose()?;
        Ok(Self { training, with_model, state })
    }

    pub(super) fn rename_variables(&self, slots: &mut [TensorSlot]) {
        for name in slots.iter_mut().flat_map(|slot| &mut slot.names) {
            *name = self.training.in_model(name);
        }
    }

    pub(super) fn rename_state(&self, slots: &mut [TensorSlot]) {
        let Some(state) = &self.state else { return };
        for name in slots.iter_mut().flat_map(|slot| &mut slot.names) {
            if let Some((parameter, kind)) = name.rsplit_once('.') {
                *name = state.tensor(parameter, kind);
            }
        }
    }

    /// Leaves values that the checkpoint lacks unchanged.
    pub(super) fn settings_of(
        &self,
        optimizer: &AdamW,
        mismatches: &mut Vec<Mismatch>,
    ) -> Result<(usize, ParamsAdamW)> {
        let mut step = optimizer.step;
        let mut params = optimizer.params.clone();
        let Some(state) = &self.state else { return Ok((step, params)) };
        // Such as `max_exp_avg_sq`, without which AMSGrad would silently become AdamW.
        for (name, parameter) in state.parameters() {
            let others = parameter.kinds().filter(|kind| !KINDS.contains(kind));
            let others = others.map(|kind| Mismatch::Extra { name: state.tensor(name, kind) });
            mismatches.extend(others);
            if parameter.steps().is_none() {
                let name = state.tensor(name, "step");
                mismatches.push(Mismatch::Missing { name });
            }
        }
        // With parameters of different steps this fails: candle's formula would correct the bias of
        // some of them wrongly.
        if let Some(steps) = state.steps()? {
            let too_many = OptimizerProblem::BadStep { limit: MOST_STEPS, found: steps as f64 };
            step = usize::try_from(steps).ok().filter(|_| steps <= MOST_STEPS).ok_or(too_many)?;
        }
        let set = |field: &mut f64, setting| -> Result<()> {
            *field = state.setting(setting)?.unwrap_or(*field);
            Ok(())
        };
        set(&mut params.lr, "lr")?;
        set(&mut params.eps, "eps")?;
        set(&mut params.weight_decay, "weight_decay")?;
        let decays = state.setting("weight_decay")?.is_some_and(|decay: f64| decay != 0.0);
        if let Some([beta1, beta2]) = state.setting::<[f64; 2]>("betas")? {
            (params.beta1, params.beta2) = (beta1, beta2);
        }
        let decoupled = "decoupled_weight_decay";
        for (setting, expected) in [("amsgrad", false), ("maximize", false), (decoupled, true)] {
            let found: Option<bool> = state.setting(setting)?;
            let is_decay = setting == decoupled;
            // Adam and AdamW have the same tensors and, before PyTorch 2.7, the same settings.
            // A tensor of another optimizer says more than a setting that is not there.
            if is_decay && found.is_none() && decays && mismatches.is_empty() {
                return Err(OptimizerProblem::AdamOrAdamW.into());
            }
            let found = found.unwrap_or(expected);
            // Without weight decay, Adam and AdamW are the same.
            if found != expected && (!is_decay || params.weight_decay != 0.0) {
                let expected = if expected { "true" } else { "false" };
                let found = found.to_string();
                return Err(OptimizerProblem::Setting { setting, expected, found }.into());
            }
        }
        Ok((step, params))
    }

    /// Returns `true` for tensors of the model, and of the kinds of state that are loaded.
    pub(super) fn needs_slot(&self, tensor: &str) -> bool {
        let of_state = |state: &OptimizerState| {
            let kind = tensor.rsplit_once('.').map(|(_, kind)| kind);
            state.has(tensor) && kind.is_some_and(|kind| KINDS.contains(&kind))
        };
        let is_of_model = self.with_model && self.training.is_of_model(tensor);
        is_of_model || self.state.as_ref().is_some_and(of_state)
    }
}
