//! The state of an optimizer as tensors and metadata.

use candle_core::Tensor;
use candle_nn::ParamsAdamW;
use safetensors_core::Result;

use super::AdamW;
use super::adamw::Parameter;
use super::values::TensorSlot;
use crate::error::from_candle_error;

pub(super) const KINDS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

impl AdamW {
    pub(super) fn tensors(&self) -> Result<impl Iterator<Item = (String, &Tensor)>> {
        self.check_names()?;
        Ok(self.parameters.iter().flat_map(|parameter| {
            let name = parameter.variable.names.first().map_or("", String::as_str);
            parameter.tensors().map(|(kind, tensor)| (format!("{name}.{kind}"), tensor))
        }))
    }

    /// Returns the slots in the order of [`tensors`](AdamW::tensors).
    pub(super) fn slots(&self) -> Result<Vec<TensorSlot>> {
        self.check_names()?;
        let slots = self.parameters.iter().flat_map(|parameter| {
            parameter.tensors().map(|(kind, tensor)| {
                // Any name of a tied variable may be the one under which the file has it.
                let names = parameter.variable.names.iter();
                let names = names.map(|name| format!("{name}.{kind}")).collect();
                TensorSlot { names, tensor: tensor.clone() }
            })
        });
        Ok(slots.collect())
    }

    /// Takes checked `values` in the order of [`slots`](AdamW::slots).
    pub(super) fn replace(
        &mut self,
        (step, params): (usize, ParamsAdamW),
        values: Vec<Option<Tensor>>,
    ) {
        (self.step, self.params) = (step, params);
        let state = self
            .parameters
            .iter_mut()
            .flat_map(|parameter| [&mut parameter.exp_avg, &mut parameter.exp_avg_sq]);
        for (tensor, value) in state.zip(values) {
            if let Some(value) = value {
                *tensor = value;
            }
        }
    }

    fn check_names(&self) -> Result<()> {
        if self.parameters.iter().all(|parameter| !parameter.variable.names.is_empty()) {
            return Ok(());
        }
        Err(from_candle_error(candle_core::Error::msg(
            "the optimizer has no names for its variables: make it with AdamW::from_var_map or \
             AdamW::from_named",
        )))
    }
}

impl Parameter {
    fn tensors(&self) -> [(&'static str, &Tensor); 2] {
        [(KINDS[0], &self.exp_avg), (KINDS[1], &self.exp_avg_sq)]
    }
}
