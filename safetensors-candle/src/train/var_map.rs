//! Loads checkpoints into the variables of a `VarMap`, and saves these.

use std::path::Path;

use candle_core::Tensor;
use candle_nn::VarMap;
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::{Checkpoint, ReadAt, Result, SaveOptions, ShardOptions};

use super::slots::fill;
use super::values::TensorSlot;
use super::variables::{Variable, distinct, named};
use super::{Loaded, StateOptions};
use crate::error::from_candle_error;
use crate::{save, save_sharded};

/// Loads a checkpoint into the variables of a `VarMap`. The path is that of a file, of an index of
/// shards, or of the directory that holds either.
///
/// Every variable must have a tensor of its name, shape and dtype, and every tensor must have a
/// variable. If anything differs, no variable changes. See the [module](super) for the rules, and
/// for the memory that this takes.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train::{load_var_map, save_var_map};
/// use safetensors_core::{ErrorKind, SaveOptions};
///
/// let new = |out| -> candle_core::Result<VarMap> {
///     let var_map = VarMap::new();
///     let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
///     candle_nn::linear(2, out, builder.pp("head"))?;
///     Ok(var_map)
/// };
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save_var_map(&path, &new(3)?, &SaveOptions::new())?;
///
/// load_var_map(&path, &new(3)?)?;
///
/// let error = load_var_map(&path, &new(4)?).unwrap_err();
/// let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!() };
/// assert_eq!(mismatches.len(), 2); // head.weight and head.bias
/// assert!(error.to_string().contains(r#""head.bias" should have shape [4], found [3]"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - Those of [`Checkpoint::open`] and of reading.
/// - [`ErrorKind::Mismatches`] with all differences, before any data is read. If names of one
///   variable have different values, only after reading.
/// - [`ErrorKind::Framework`] if candle fails.
///
/// [`ErrorKind::Mismatches`]: safetensors_core::ErrorKind::Mismatches
/// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
pub fn load_var_map(path: impl AsRef<Path>, var_map: &VarMap) -> Result<Loaded> {
    load_var_map_with(path, var_map, &StateOptions::new())
}

/// [`load_var_map`] with options: cast, and allow missing or extra tensors. [`StateOptions`] has an
/// example.
///
/// # Errors
///
/// Those of [`load_var_map`], and [`ErrorKind::DoesNotFit`] for a value that its variable cannot
/// hold.
///
/// [`ErrorKind::DoesNotFit`]: safetensors_core::ErrorKind::DoesNotFit
pub fn load_var_map_with(
    path: impl AsRef<Path>,
    var_map: &VarMap,
    options: &StateOptions,
) -> Result<Loaded> {
    load_var_map_from(&Checkpoint::open(path)?, var_map, options)
}

/// [`load_var_map_with`] from a checkpoint that is already open, for example with limits or in
/// memory.
///
/// # Errors
///
/// Those of [`load_var_map_with`], except those of opening.
pub fn load_var_map_from<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    var_map: &VarMap,
    options: &StateOptions,
) -> Result<Loaded> {
    let variables = distinct(named(var_map));
    let slots: Vec<TensorSlot> = variables.iter().map(Variable::slot).collect();
    let mut filled = fill(checkpoint, &slots, Vec::new(), options)?;
    set(&variables, std::mem::take(&mut filled.tensors))?;
    Ok(Loaded::new(checkpoint, filled))
}

/// Copies values, which fit, into variables. Each value is dropped when it is copied.
pub(super) fn set(variables: &[Variable], values: Vec<Option<Tensor>>) -> Result<()> {
    for (variable, value) in variables.iter().zip(values) {
        let Some(value) = value else { continue };
        variable.var.set(&value).map_err(|error| {
            let error = from_candle_error(error);
            variable.names.iter().fold(error, |error, name| error.in_tensor(name))
        })?;
    }
    Ok(())
}

/// Saves the variables of a `VarMap` to one file, atomically, as [`save()`](crate::save()) saves
/// tensors.
///
/// The same variables give the same bytes, in whatever order the map has them. A variable that is
/// in the map under several names is saved under each of them, or once with
/// [`SaveOptions::tied`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train::save_var_map;
/// use safetensors_core::{Checkpoint, SaveOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(2, 3, builder.pp("head"))?;
///
/// save_var_map(&path, &var_map, &SaveOptions::new().metadata([("format", "pt")]))?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("head.weight")?.shape(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`save()`](crate::save()).
pub fn save_var_map(path: impl AsRef<Path>, var_map: &VarMap, options: &SaveOptions) -> Result<()> {
    save(path, named(var_map).iter().map(|(name, var)| (name, var.as_tensor())), options)
}

/// Saves the variables of a `VarMap` to a directory, as a checkpoint of one file or several shards.
/// See [`save_sharded`](crate::save_sharded).
///
/// # Errors
///
/// Those of [`save_sharded`](crate::save_sharded).
pub fn save_var_map_sharded(
    directory: impl AsRef<Path>,
    var_map: &VarMap,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let variables = named(var_map);
    let tensors = variables.iter().map(|(name, var)| (name, var.as_tensor()));
    save_sharded(directory, tensors, options)
}
