//! Saves and loads variables, the state of an optimizer, or both as one unit.

use std::path::Path;

use candle_core::Tensor;
use candle_nn::VarMap;
#[cfg(feature = "delta")]
use safetensors_core::ErrorKind;
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::framework::view;
use safetensors_core::{Checkpoint, Metadata, ReadAt, Result, SaveOptions, ShardOptions};

#[cfg(feature = "delta")]
use super::linked::{is_linked, with_whole};
use super::pytorch::Source;
use super::slots::fill;
use super::values::TensorSlot;
use super::variables::{Variable, distinct, named, set};
use super::{AdamW, Loaded, StateOptions};

/// The state to save: a `&VarMap`, an `&AdamW`, or both as a pair.
#[derive(Clone, Copy, Default)]
pub struct StateRef<'a> {
    pub(super) var_map: Option<&'a VarMap>,
    pub(super) optimizer: Option<&'a AdamW>,
}

impl<'a> From<&'a VarMap> for StateRef<'a> {
    fn from(var_map: &'a VarMap) -> Self {
        Self { var_map: Some(var_map), optimizer: None }
    }
}

impl<'a> From<&'a AdamW> for StateRef<'a> {
    fn from(optimizer: &'a AdamW) -> Self {
        Self { var_map: None, optimizer: Some(optimizer) }
    }
}

impl<'a> From<(&'a VarMap, &'a AdamW)> for StateRef<'a> {
    fn from((var_map, optimizer): (&'a VarMap, &'a AdamW)) -> Self {
        Self { var_map: Some(var_map), optimizer: Some(optimizer) }
    }
}

impl StateRef<'_> {
    pub(super) fn tensors(self) -> Result<Vec<(String, Tensor)>> {
        let variables = self.var_map.map(named).into_iter().flatten();
        let mut tensors: Vec<_> = variables.map(|(name, var)| (name, var.into_inner())).collect();
        if let Some(optimizer) = self.optimizer {
            tensors.extend(optimizer.tensors()?.map(|(name, tensor)| (name, tensor.clone())));
        }
        Ok(tensors)
    }

    pub(super) fn metadata(self) -> Metadata {
        self.optimizer.map(AdamW::metadata).unwrap_or_default()
    }
}

/// The state to load into: a `&VarMap`, a `&mut AdamW`, or both as a pair.
#[derive(Default)]
pub struct StateMut<'a> {
    var_map: Option<&'a VarMap>,
    optimizer: Option<&'a mut AdamW>,
}

impl<'a> From<&'a VarMap> for StateMut<'a> {
    fn from(var_map: &'a VarMap) -> Self {
        Self { var_map: Some(var_map), optimizer: None }
    }
}

impl<'a> From<&'a mut AdamW> for StateMut<'a> {
    fn from(optimizer: &'a mut AdamW) -> Self {
        Self { var_map: None, optimizer: Some(optimizer) }
    }
}

impl<'a> From<(&'a VarMap, &'a mut AdamW)> for StateMut<'a> {
    fn from((var_map, optimizer): (&'a VarMap, &'a mut AdamW)) -> Self {
        Self { var_map: Some(var_map), optimizer: Some(optimizer) }
    }
}

/// Saves the variables of a model, the state of its optimizer, or both to one file, atomically,
/// with the metadata of the options.
///
/// [`AdamW`] lists the tensors and metadata of the optimizer. A variable with several names in the
/// map is saved under each of them, or once with [`SaveOptions::tied`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train;
/// use safetensors_core::{Checkpoint, SaveOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(2, 3, builder.pp("head"))?;
///
/// train::save(&path, &var_map, &SaveOptions::new().metadata([("format", "pt")]))?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("head.weight")?.shape(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// An error of [`save()`](crate::save()), such as
/// [`ErrorKind::DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor) if a variable has
/// the name of a tensor of the optimizer;
/// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if the optimizer was made
/// without names.
pub fn save<'a>(
    path: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let state = state.into();
    let tensors = state.tensors().map_err(|error| error.in_path(path))?;
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    crate::save(path, tensors, &options.clone().metadata(state.metadata()))
}

/// Saves like [`save`], to a directory, as a single file or several shards, like
/// [`save_sharded`](crate::save_sharded).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{ParamsAdamW, VarBuilder, VarMap};
/// use safetensors_candle::train::{self, AdamW};
/// use safetensors_core::ShardOptions;
///
/// let dir = tempfile::tempdir()?;
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(2, 3, builder.pp("head"))?;
/// let mut optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default())?;
///
/// let options = ShardOptions::new().max_shard_size(32.into()).metadata([("epoch", "7")]);
/// let saved = train::save_sharded(dir.path(), (&var_map, &optimizer), &options)?;
/// assert!(saved.files.len() > 1);
///
/// let loaded = train::load(dir.path(), (&var_map, &mut optimizer))?;
/// assert_eq!(loaded.metadata["epoch"], "7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let directory = directory.as_ref();
    let state = state.into();
    let tensors = state.tensors().map_err(|error| error.in_path(directory))?;
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    crate::save_sharded(directory, tensors, &options.clone().metadata(state.metadata()))
}

/// Loads a checkpoint into the variables of a model, into its optimizer, or into both. The path is
/// a file, an index of shards, the directory of either, or with the feature `delta` a directory of
/// `save_delta`, which takes space for the complete file next to it during the load.
///
/// A load is strict by default, and changes all or nothing: the [module](super) has the rules.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train;
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
/// train::save(&path, &new(3)?, &SaveOptions::new())?;
///
/// train::load(&path, &new(3)?)?;
///
/// let error = train::load(&path, &new(4)?).unwrap_err();
/// let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!() };
/// assert_eq!(mismatches.len(), 2); // head.weight and head.bias
/// assert!(error.to_string().contains(r#""head.bias" should have shape [4], found [3]"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// An error of [`Checkpoint::open`];
/// [`ErrorKind::Mismatches`](safetensors_core::ErrorKind::Mismatches) with all differences, before
/// any data is read, except for different values under the names of a variable;
/// [`ErrorKind::DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor) if a variable has
/// the name of a tensor of the optimizer;
/// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if candle fails, or if the
/// optimizer was made without names.
pub fn load<'a>(path: impl AsRef<Path>, state: impl Into<StateMut<'a>>) -> Result<Loaded> {
    StateOptions::new().load(path, state)
}

impl StateOptions {
    /// Loads like [`load`], with these options.
    ///
    /// # Errors
    ///
    /// Like [`load`], and [`ErrorKind::DoesNotFit`](safetensors_core::ErrorKind::DoesNotFit) for a
    /// value that its variable cannot hold.
    pub fn load<'a>(
        &self,
        path: impl AsRef<Path>,
        state: impl Into<StateMut<'a>>,
    ) -> Result<Loaded> {
        let path = path.as_ref();
        match Checkpoint::open(path) {
            #[cfg(feature = "delta")]
            Err(error) if matches!(error.kind(), ErrorKind::IsDelta { .. }) && is_linked(path) => {
                with_whole(path, |checkpoint| self.load_from(checkpoint, state))
            }
            opened => self.load_from(&opened?, state),
        }
    }

    /// Loads from an open checkpoint, for example with limits or in memory.
    ///
    /// # Errors
    ///
    /// Like [`load`](Self::load). With [`pytorch`](Self::pytorch), also an error of
    /// [`PyTorchTraining::state`](safetensors_core::optimizer::PyTorchTraining::state), and
    /// [`ErrorKind::Optimizer`](safetensors_core::ErrorKind::Optimizer) for a state that candle's
    /// formula cannot go on with.
    pub fn load_from<'a, S: ReadAt>(
        &self,
        checkpoint: &Checkpoint<S>,
        state: impl Into<StateMut<'a>>,
    ) -> Result<Loaded> {
        if let Some(view) = view(checkpoint, &self.load_options)? {
            return self.load_tensors(&view, state.into());
        }
        self.load_tensors(checkpoint, state.into())
    }

    fn load_tensors<S: ReadAt>(
        &self,
        checkpoint: &Checkpoint<S>,
        StateMut { var_map, optimizer }: StateMut<'_>,
    ) -> Result<Loaded> {
        // Everything is compared and read before anything is set, so a load that fails leaves the
        // variables and the optimizer as they were.
        let variables = var_map.map(|var_map| distinct(named(var_map))).unwrap_or_default();
        let mut slots: Vec<TensorSlot> = variables.iter().map(Variable::slot).collect();
        let mut of_state =
            optimizer.as_ref().map_or(Ok(Vec::new()), |optimizer| optimizer.slots())?;
        let mut mismatches = Vec::new();
        let mut settings = None;
        let source = self.pytorch.as_ref().map(|training| {
            Source::find(training, checkpoint, var_map.is_some(), optimizer.is_some())
        });
        let source = source.transpose()?;
        if let Some(source) = &source {
            source.rename_variables(&mut slots);
            source.rename_state(&mut of_state);
        }
        if let Some(optimizer) = &optimizer {
            settings = Some(match &source {
                None => {
                    let metadata = checkpoint.metadata();
                    optimizer.settings_of(metadata, self.allow_missing, &mut mismatches)
                }
                Some(source) => source
                    .settings_of(optimizer, &mut mismatches)
                    .map_err(|error| checkpoint.in_first_path(error))?,
            });
        }
        slots.extend(of_state);
        let needs_slot = |name: &str| source.as_ref().is_none_or(|source| source.needs_slot(name));
        let mut filled = fill(checkpoint, &slots, mismatches, needs_slot, self)?;
        // The slots of the optimizer follow the variables'.
        let mut of_variables = std::mem::take(&mut filled.tensors);
        let of_optimizer = of_variables.split_off(variables.len());
        // Only this can still fail, if a GPU does.
        set(&variables, of_variables)?;
        if let (Some(optimizer), Some(settings)) = (optimizer, settings) {
            optimizer.replace(settings, of_optimizer);
        }
        Ok(Loaded::new(checkpoint, filled))
    }
}
