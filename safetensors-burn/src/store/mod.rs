//! [`CheckpointStore`]: loads and saves burn modules.

mod adopt;
mod catalog;
mod choosing;
mod filter;
pub(crate) mod ids;
mod indices;
mod load;
pub(crate) mod names;
mod options;
pub(crate) mod pack;
mod parameters;
mod place;
mod plan;
mod read;
mod save;
mod ties;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use burn_store::{ApplyResult, IdentityAdapter, ModuleAdapter, ModuleSnapshot, ModuleStore};
use bytes::Bytes;
use catalog::Catalog;
use filter::Filter;
use names::Naming;
use pack::PackTensor;
#[cfg(feature = "train")]
pub(crate) use parameters::Kind;
use place::StorePlace;
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::tied::Tied;
use safetensors_core::{Checkpoint, Error, LoadOptions, ReadAt, Result, SaveOptions};

use crate::pytorch::Layout;
use crate::{Burn, StoreError};

/// Loads burn modules from safetensors checkpoints and saves them to safetensors files.
///
/// It has every option of burn-store's `SafetensorsStore`, under the same name. The module
/// [`migration`](crate::migration) lists the differences.
///
/// # Loading
///
/// - The path may be a file, an index of shards (`*.json`), or the directory of either. It stays
///   open after the first use: only a new store sees newer files.
/// - If loading fails, the module stays unchanged. So memory holds new and old values, unless
///   [`max_extra_memory`](CheckpointStore::max_extra_memory) is set. A module fresh from `init` has
///   no values yet, and loading does not initialize them.
///
/// # Saving
///
/// - A file appears complete or not at all.
/// - A file that exists is not replaced, unless [`overwrite`](CheckpointStore::overwrite) is set.
/// - With [`max_shard_size`](CheckpointStore::max_shard_size) the store writes shards.
///
/// # Ids of parameters
///
/// burn finds gradients and the state of an optimizer by the ids of parameters. A module keeps its
/// ids when it is loaded, so one file can be loaded into two modules that are trained together, and
/// into a module with an optimizer that already has state.
///
/// To go on with an optimizer that was saved with the module, set
/// [`param_ids(true)`](CheckpointStore::param_ids), which restores the saved ids: otherwise the
/// optimizer silently finds no state. The checkpointers of the module `train` need no option.
///
/// The metadata entry `safetensors_bridge.param_ids` is a JSON object with the id (an unsigned
/// 64-bit integer) of each tensor by its name in the file. A tensor that is renamed in the file
/// loses its id.
///
/// # Tied parameters
///
/// A parameter that a module has under several paths is saved once, under the first of its names in
/// sorted order. The metadata lists the other names, as in files of `safetensors.torch.save_model`.
/// Loading finds the tensor under all of its names.
///
/// Two parameters are tied if they have the same id and the same bits, which are read from their
/// device once more. A clone of a module has the same ids; after one of the two has changed, both
/// are saved.
///
/// burn-store, candle and the `safetensors` crate do not find the other names. For them, set
/// [`save_options`](CheckpointStore::save_options) without [`tied`](SaveOptions::tied).
///
/// # Dtypes
///
/// A parameter takes over the dtype of its tensor: after a load of an F16 file, burn panics at an
/// input of F32 (`dtype mismatch`). To convert, set [`load_options`](CheckpointStore::load_options)
/// such as `LoadOptions::new().floats_as(Dtype::F32)`.
///
/// A [quantised weight](safetensors_core::quantized) is an error, unless [`LoadOptions::quantized`]
/// reads its numbers or its codes.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use safetensors_burn::{CheckpointStore, ModuleSnapshot, ModuleStore};
///
/// #[derive(Module, Debug)]
/// struct Model {
///     encoder: Linear,
///     head: Linear,
/// }
///
/// impl Model {
///     fn new(device: &Device) -> Self {
///         Self {
///             encoder: LinearConfig::new(4, 8).init(device),
///             head: LinearConfig::new(8, 2).init(device),
///         }
///     }
/// }
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let device = Device::default();
/// let trained = Model::new(&device);
/// trained
///     .save_into(&mut CheckpointStore::from_file(&path).metadata("title", "An example"))?;
///
/// // Loads only the encoder into another model.
/// let mut store = CheckpointStore::from_file(&path).with_regex(r"^encoder\.");
/// let mut fresh = Model::new(&device);
/// let result = fresh.load_from(&mut store)?;
/// assert_eq!(result.applied, ["encoder.weight", "encoder.bias"]);
/// assert_eq!(result.skipped, ["head.bias", "head.weight"]);
/// assert_eq!(store.keys()?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CheckpointStore {
    place: StorePlace,
    filter: Filter,
    naming: Naming,
    bad_pattern: Option<regex::Error>,
    load_options: LoadOptions,
    save_options: SaveOptions,
    overwrite: bool,
    max_shard_size: Option<MaxShardSize>,
    from_adapter: Box<dyn ModuleAdapter>,
    to_adapter: Box<dyn ModuleAdapter>,
    allow_partial: bool,
    validate: bool,
    pub(crate) skip_enum_variants: bool,
    pub(crate) layout: Layout,
    param_ids: bool,
    records_ids: bool,
    max_extra_memory: u64,
    catalog: Option<Arc<Catalog>>,
}

impl CheckpointStore {
    /// Makes a store for a path, without opening it.
    ///
    /// To load, the path is a file, an index of shards or a directory, as for
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open). To save, it is a file, or a
    /// directory with [`max_shard_size`](CheckpointStore::max_shard_size).
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::at(StorePlace::Path(path.into()))
    }

    /// Makes a store in memory from the bytes of a file, which are not copied, or for a module to
    /// be saved.
    ///
    /// Each save replaces its bytes. [`max_shard_size`](CheckpointStore::max_shard_size) has no
    /// effect.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
    ///
    /// let device = Device::default();
    /// let trained: Linear = LinearConfig::new(4, 2).init(&device);
    /// let mut store = CheckpointStore::from_bytes(None);
    /// trained.save_into(&mut store)?;
    /// let bytes: Vec<u8> = store.get_bytes()?;
    ///
    /// let mut fresh: Linear = LinearConfig::new(4, 2).init(&device);
    /// fresh.load_from(&mut CheckpointStore::from_bytes(Some(bytes)))?;
    /// assert_eq!(fresh.weight.to_data(), trained.weight.to_data());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn from_bytes(bytes: Option<Vec<u8>>) -> Self {
        Self::at(StorePlace::Memory(bytes.map(Bytes::from)))
    }

    /// Makes a store that loads from an open checkpoint: from a bucket, from files in memory, or
    /// from a server or in a browser, where the tensors have been [fetched] before. It does not
    /// save.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
    /// use safetensors_core::Checkpoint;
    ///
    /// let device = Device::default();
    /// let trained: Linear = LinearConfig::new(4, 2).init(&device);
    /// let mut store = CheckpointStore::from_bytes(None);
    /// trained.save_into(&mut store)?;
    ///
    /// let checkpoint = Checkpoint::from_source(store.get_bytes()?, "linear.safetensors")?;
    /// let mut fresh: Linear = LinearConfig::new(4, 2).init(&device);
    /// fresh.load_from(&mut CheckpointStore::from_checkpoint(checkpoint))?;
    /// assert_eq!(fresh.weight.to_data(), trained.weight.to_data());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// [fetched]: safetensors_core::checkpoint::store::AsyncStore::fetch
    pub fn from_checkpoint<S: ReadAt + 'static>(checkpoint: Checkpoint<S>) -> Self {
        Self::at(StorePlace::new(checkpoint))
    }

    fn at(place: StorePlace) -> Self {
        Self {
            place,
            filter: Filter::default(),
            naming: Naming::default(),
            bad_pattern: None,
            load_options: LoadOptions::new().for_framework::<Burn>(),
            save_options: SaveOptions::new().metadata(Self::default_metadata()).tied(Tied::new()),
            overwrite: false,
            max_shard_size: None,
            from_adapter: Box::new(IdentityAdapter),
            to_adapter: Box::new(IdentityAdapter),
            allow_partial: false,
            validate: true,
            skip_enum_variants: false,
            layout: Layout::default(),
            param_ids: false,
            records_ids: true,
            max_extra_memory: u64::MAX,
            catalog: None,
        }
    }

    /// Returns a copy of the bytes of a store in memory.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoBytes`] if nothing has been saved yet; [`StoreError::NotInMemory`] for a
    /// store of a path.
    pub fn get_bytes(&self) -> Result<Vec<u8>> {
        let error = match &self.place {
            StorePlace::Memory(Some(bytes)) => return Ok(bytes.to_vec()),
            StorePlace::Memory(None) => StoreError::NoBytes,
            StorePlace::Path(_) | StorePlace::Open(..) => StoreError::NotInMemory,
        };
        Err(self.place.locate(error.into()))
    }

    fn check_patterns(&self) -> Result<()> {
        match &self.bad_pattern {
            None => Ok(()),
            Some(error) => Err(StoreError::Pattern(error.clone()).into()),
        }
    }

    fn catalog(&mut self) -> Result<&Arc<Catalog>> {
        self.check_patterns()?;
        match self.catalog {
            Some(ref catalog) => Ok(catalog),
            None => {
                let naming = self.naming.clone();
                let options = self.load_options.clone();
                let catalog = Catalog::open(&self.place, naming, options, self.param_ids)?;
                Ok(self.catalog.insert(Arc::new(catalog)))
            }
        }
    }
}

impl Default for CheckpointStore {
    fn default() -> Self {
        Self::from_bytes(None)
    }
}

impl ModuleStore for CheckpointStore {
    type Error = Error;

    /// Saves the module's parameters that pass the filter, atomically.
    ///
    /// # Errors
    ///
    /// [`FileExists`](safetensors_core::ErrorKind::FileExists) unless
    /// [`overwrite`](CheckpointStore::overwrite) is set;
    /// [`NothingSelected`](safetensors_core::ErrorKind::NothingSelected) if the filter selects no
    /// parameter; a [`StoreError`]; an error of [`safetensors_core::save()`].
    fn collect_from<M: ModuleSnapshot>(&mut self, module: &M) -> Result<()> {
        self.save_module(module)
    }

    /// Loads the module's parameters that pass the filter. After an error the module is unchanged,
    /// except with [`max_extra_memory`](CheckpointStore::max_extra_memory).
    ///
    /// # Errors
    ///
    /// [`NothingSelected`](safetensors_core::ErrorKind::NothingSelected) if the filter selects no
    /// parameter or the [`prefix`](CheckpointStore::prefix) no tensor;
    /// [`ApplyError`](crate::ApplyError) for the first tensor that does not fit its parameter;
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization); a [`StoreError`]; an error of
    /// [`load_with`](crate::load_with).
    fn apply_to<M: ModuleSnapshot>(&mut self, module: &mut M) -> Result<ApplyResult> {
        self.load_module(module)
    }

    fn get_tensor(&mut self, name: &str) -> Result<Option<&PackTensor>> {
        Ok(self.catalog()?.tensors().get(name))
    }

    fn get_all_tensors(&mut self) -> Result<&BTreeMap<String, PackTensor>> {
        Ok(self.catalog()?.tensors())
    }

    fn keys(&mut self) -> Result<Vec<String>> {
        Ok(self.catalog()?.tensors().keys().cloned().collect())
    }
}
