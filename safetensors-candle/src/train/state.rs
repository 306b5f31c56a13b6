//! Saves and loads the state of an optimizer.

use std::path::Path;

use candle_core::Tensor;
use candle_nn::ParamsAdamW;
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::error::Mismatch;
use safetensors_core::{Checkpoint, Metadata, ReadAt, Result, SaveOptions, ShardOptions};

use super::adamw::Parameter;
use super::slots::fill;
use super::values::TensorSlot;
use super::{AdamW, Loaded, StateOptions, settings};
use crate::error::from_candle_error;
use crate::{save, save_sharded};

const EXP_AVG: &str = "exp_avg";
const EXP_AVG_SQ: &str = "exp_avg_sq";

impl AdamW {
    /// Saves the state to one file, atomically. The type's documentation lists what is in the file.
    /// To save the model too, use [`save_training`](super::save_training).
    ///
    /// # Errors
    ///
    /// Those of [`save()`](crate::save()), and [`ErrorKind::Framework`] if the optimizer was made
    /// without names.
    ///
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    pub fn save(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<()> {
        let path = path.as_ref();
        let tensors = self.tensors().map_err(|error| error.in_path(path))?;
        save(path, tensors, &options.clone().metadata(self.metadata()))
    }

    /// Saves the state to a directory, as a checkpoint of one file or several shards.
    ///
    /// # Errors
    ///
    /// Those of [`save_sharded`](crate::save_sharded), and [`ErrorKind::Framework`] if the
    /// optimizer was made without names.
    ///
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    pub fn save_sharded(
        &self,
        directory: impl AsRef<Path>,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        let directory = directory.as_ref();
        let tensors = self.tensors().map_err(|error| error.in_path(directory))?;
        save_sharded(directory, tensors, &options.clone().metadata(self.metadata()))
    }

    /// Loads the state: the step, the hyperparameters, and the state of every variable. The path is
    /// that of a file, of an index of shards, or of the directory that holds either.
    ///
    /// If anything differs or fails, the optimizer stays as it was. The variables do not change.
    ///
    /// # Errors
    ///
    /// - Those of [`Checkpoint::open`] and of reading.
    /// - [`ErrorKind::Mismatches`] with all differences, for example if the state is that of
    ///   another model.
    /// - [`ErrorKind::Framework`] if candle fails, or if the optimizer was made without names.
    ///
    /// [`ErrorKind::Mismatches`]: safetensors_core::ErrorKind::Mismatches
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Loaded> {
        self.load_with(path, &StateOptions::new())
    }

    /// [`load`](AdamW::load) with options: cast, and allow missing or extra tensors.
    ///
    /// # Errors
    ///
    /// Those of [`load`](AdamW::load).
    pub fn load_with(&mut self, path: impl AsRef<Path>, options: &StateOptions) -> Result<Loaded> {
        self.load_from(&Checkpoint::open(path)?, options)
    }

    /// [`load_with`](AdamW::load_with) from a checkpoint that is already open.
    ///
    /// # Errors
    ///
    /// Those of [`load_with`](AdamW::load_with), except those of opening.
    pub fn load_from<S: ReadAt>(
        &mut self,
        checkpoint: &Checkpoint<S>,
        options: &StateOptions,
    ) -> Result<Loaded> {
        let mut mismatches = Vec::new();
        let settings = self.settings_of(checkpoint, options, &mut mismatches);
        let mut filled = fill(checkpoint, &self.slots()?, mismatches, options)?;
        self.replace(settings, std::mem::take(&mut filled.tensors));
        Ok(Loaded::new(checkpoint, filled))
    }

    /// The tensors of the state by the names that they have in a file.
    pub(super) fn tensors(&self) -> Result<impl Iterator<Item = (String, &Tensor)>> {
        self.check_names()?;
        Ok(self.parameters.iter().flat_map(|parameter| {
            let name = parameter.variable.names.first().map_or("", String::as_str);
            parameter.tensors().map(|(kind, tensor)| (format!("{name}.{kind}"), tensor))
        }))
    }

    /// The step and the hyperparameters.
    pub(super) fn metadata(&self) -> Metadata {
        settings::to_metadata(self.step, &self.params)
    }

    /// A slot for each tensor of the state, in the order of [`tensors`](AdamW::tensors).
    pub(super) fn slots(&self) -> Result<Vec<TensorSlot>> {
        self.check_names()?;
        let slots = self.parameters.iter().flat_map(|parameter| {
            parameter.tensors().map(|(kind, tensor)| {
                let names = parameter.variable.names.iter();
                let names = names.map(|name| format!("{name}.{kind}")).collect();
                TensorSlot { names, tensor: tensor.clone() }
            })
        });
        Ok(slots.collect())
    }

    /// The step and the hyperparameters of a checkpoint.
    pub(super) fn settings_of<S>(
        &self,
        checkpoint: &Checkpoint<S>,
        options: &StateOptions,
        mismatches: &mut Vec<Mismatch>,
    ) -> (usize, ParamsAdamW) {
        let metadata = checkpoint.metadata();
        let allow_missing = options.allow_missing;
        settings::from_metadata(metadata, self.step, &self.params, allow_missing, mismatches)
    }

    /// Replaces the state by one that was checked. `values` are in the order of
    /// [`slots`](AdamW::slots).
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
            "the optimizer was made without the names of its variables, to which its state \
             belongs: make it with AdamW::from_var_map or AdamW::from_named",
        )))
    }
}

impl Parameter {
    fn tensors(&self) -> [(&'static str, &Tensor); 2] {
        [(EXP_AVG, &self.exp_avg), (EXP_AVG_SQ, &self.exp_avg_sq)]
    }
}
