//! Finds the weights of a checkpoint, and the weight with its codes in a tensor.

use super::facts::{LookedAt, TensorFacts};
use super::model::{Model, Weight};
use super::schemes;
use super::tensors::Tensors;
use crate::format::error::Result;

impl TensorFacts {
    pub(crate) fn weights(&self, tensors: &dyn Tensors) -> Result<Vec<Weight>> {
        if self.has_none.get().is_some() {
            return Ok(Vec::new());
        }
        let model = Model::new(self, tensors);
        model.read_notes()?;
        let found = schemes::weights(&model);
        let found = model.checked(found)?;
        if found.is_empty() {
            _ = self.has_none.set(());
        }
        Ok(found)
    }

    /// Returns `None` for a plain tensor.
    pub(crate) fn of_tensor(
        &self,
        tensors: &dyn Tensors,
        position: usize,
    ) -> Result<Option<Weight>> {
        let Some(LookedAt { stored, is_plain, .. }) = self.get(tensors, position) else {
            return Ok(None);
        };
        if is_plain.get().is_some() {
            return Ok(None);
        }
        let model = Model::new(self, tensors);
        let found = schemes::of_codes(&model, stored);
        let found = model.checked(found)?;
        if found.is_none() {
            _ = is_plain.set(());
        }
        Ok(found)
    }
}
