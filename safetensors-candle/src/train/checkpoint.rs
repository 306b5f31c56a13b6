//! A model and its optimizer as one checkpoint.

use std::path::Path;

use candle_core::Tensor;
use candle_nn::VarMap;
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::{Checkpoint, ReadAt, Result, SaveOptions, ShardOptions};

use super::slots::fill;
use super::values::TensorSlot;
use super::var_map::set;
use super::variables::{Variable, distinct, named};
use super::{AdamW, Loaded, StateOptions};
use crate::{save, save_sharded};

/// Saves the variables of a model and the state of its optimizer to one file, atomically, with the
/// metadata of the options.
///
/// The file has the variables under their names, and what [`AdamW`] lists. A process that is killed
/// at any time leaves the complete earlier file or the complete new one. The [module](super) has an
/// example.
///
/// # Errors
///
/// - Those of [`save()`](crate::save()). One is
///   [`ErrorKind::DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor), if a variable
///   has the name of a tensor of the optimizer.
/// - [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if the optimizer was made
///   without names.
pub fn save_training(
    path: impl AsRef<Path>,
    var_map: &VarMap,
    optimizer: &AdamW,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let tensors = tensors(var_map, optimizer).map_err(|error| error.in_path(path))?;
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    save(path, tensors, &options.clone().metadata(optimizer.metadata()))
}

/// Saves the variables of a model and the state of its optimizer to a directory, as a checkpoint of
/// one file or several shards.
///
/// A process that is killed at any time leaves a directory that opens as the complete earlier
/// checkpoint or as the complete new one. See [`save_sharded`](crate::save_sharded).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{ParamsAdamW, VarBuilder, VarMap};
/// use safetensors_candle::train::{AdamW, load_training, save_training_sharded};
/// use safetensors_core::ShardOptions;
///
/// let dir = tempfile::tempdir()?;
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(2, 3, builder.pp("head"))?;
/// let mut optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default())?;
///
/// let options = ShardOptions::new().max_shard_size(32.into()).metadata([("epoch", "7")]);
/// let saved = save_training_sharded(dir.path(), &var_map, &optimizer, &options)?;
/// assert!(saved.files.len() > 1);
///
/// let loaded = load_training(dir.path(), &var_map, &mut optimizer)?;
/// assert_eq!(loaded.metadata["epoch"], "7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`save_sharded`](crate::save_sharded) and of [`save_training`].
pub fn save_training_sharded(
    directory: impl AsRef<Path>,
    var_map: &VarMap,
    optimizer: &AdamW,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let directory = directory.as_ref();
    let tensors = tensors(var_map, optimizer).map_err(|error| error.in_path(directory))?;
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    save_sharded(directory, tensors, &options.clone().metadata(optimizer.metadata()))
}

/// Loads what [`save_training`] or [`save_training_sharded`] saved into the variables of a model
/// and into its optimizer. The path is that of a file, of an index of shards, or of the directory
/// that holds either.
///
/// If anything differs or fails, neither the variables nor the optimizer change. The result has the
/// metadata that was given when the checkpoint was saved.
///
/// # Errors
///
/// - Those of [`Checkpoint::open`] and of reading.
/// - [`ErrorKind::Mismatches`] with all differences of model and optimizer, for example if the
///   checkpoint is that of another model.
/// - [`ErrorKind::DuplicateTensor`] if a variable has the name of a tensor of the optimizer.
/// - [`ErrorKind::Framework`] if candle fails, or if the optimizer was made without names.
///
/// [`ErrorKind::Mismatches`]: safetensors_core::ErrorKind::Mismatches
/// [`ErrorKind::DuplicateTensor`]: safetensors_core::ErrorKind::DuplicateTensor
/// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
pub fn load_training(
    path: impl AsRef<Path>,
    var_map: &VarMap,
    optimizer: &mut AdamW,
) -> Result<Loaded> {
    load_training_with(path, var_map, optimizer, &StateOptions::new())
}

/// [`load_training`] with options: cast, and allow missing or extra tensors.
///
/// # Errors
///
/// Those of [`load_training`], and [`ErrorKind::DoesNotFit`] for a value that its variable cannot
/// hold.
///
/// [`ErrorKind::DoesNotFit`]: safetensors_core::ErrorKind::DoesNotFit
pub fn load_training_with(
    path: impl AsRef<Path>,
    var_map: &VarMap,
    optimizer: &mut AdamW,
    options: &StateOptions,
) -> Result<Loaded> {
    load_training_from(&Checkpoint::open(path)?, var_map, optimizer, options)
}

/// [`load_training_with`] from a checkpoint that is already open, for example with limits or in
/// memory.
///
/// # Errors
///
/// Those of [`load_training_with`], except those of opening.
pub fn load_training_from<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    var_map: &VarMap,
    optimizer: &mut AdamW,
    options: &StateOptions,
) -> Result<Loaded> {
    let variables = distinct(named(var_map));
    let mut slots: Vec<TensorSlot> = variables.iter().map(Variable::slot).collect();
    slots.extend(optimizer.slots()?);
    let mut mismatches = Vec::new();
    let settings = optimizer.settings_of(checkpoint, options, &mut mismatches);
    let mut filled = fill(checkpoint, &slots, mismatches, options)?;
    let mut of_variables = std::mem::take(&mut filled.tensors);
    let of_optimizer = of_variables.split_off(variables.len());
    // Only this can still fail, if a GPU does.
    set(&variables, of_variables)?;
    optimizer.replace(settings, of_optimizer);
    Ok(Loaded::new(checkpoint, filled))
}

/// The tensors of both, by name.
fn tensors(var_map: &VarMap, optimizer: &AdamW) -> Result<Vec<(String, Tensor)>> {
    let variables = named(var_map).into_iter().map(|(name, var)| (name, var.into_inner()));
    let state = optimizer.tensors()?.map(|(name, tensor)| (name, tensor.clone()));
    Ok(variables.chain(state).collect())
}
