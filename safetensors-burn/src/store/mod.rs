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
/// [`migration`](crate::migration) lists them, and the differences.
///
/// A pattern that is not a regular expression is an error when the store is used.
///
/// # Loading
///
/// - The path may be a file, an index of shards (`*.json`), or the directory that holds either.
/// - Headers are parsed once. Tensors are read in parallel, each once.
/// - All tensors are checked and read before the module changes. If loading fails, the module stays
///   unchanged. During loading, memory holds the new and the old values. With
///   [`max_extra_memory`](CheckpointStore::max_extra_memory) it does not, but then a load that
///   fails late may have changed a part of the module.
/// - Loading does not initialize parameters that have no value yet. So a module that was just made
///   by `init` has no old values.
///
/// A store opens its checkpoint when it first needs it, and keeps it open. Only a new store sees
/// files that another program puts at the path later.
///
/// # Saving
///
/// - A file appears complete or not at all.
/// - A file that exists is not replaced, unless [`overwrite`](CheckpointStore::overwrite) asks for
///   it. burn-store has the same default, and programs that come from there rely on it to keep
///   their checkpoints: a replaced file is lost.
/// - With [`max_shard_size`](CheckpointStore::max_shard_size) the store writes shards.
/// - A parameter that the module has under several paths is saved once, see *Tied parameters*.
/// - It is an error if the filters leave nothing to save.
///
/// # Ids of parameters
///
/// burn finds gradients and the state of an optimizer by the ids of parameters, and a new module
/// has new ids. A module keeps its ids when it is loaded, as with burn-store's `SafetensorsStore`.
/// So one file can be loaded into two modules that are trained together, and into a module with an
/// optimizer that already has state.
///
/// A save records the ids, and [`param_ids(true)`](CheckpointStore::param_ids) restores them, as
/// burn's own records and `BurnpackStore` do. Set it to go on with an optimizer that was saved with
/// the module. Without it, that optimizer would silently find no state. The checkpointers of the
/// module `train` need no option.
///
/// The ids are one entry of the metadata, `safetensors_bridge.param_ids`: a JSON object with the id
/// (an unsigned 64-bit integer) of each tensor by its name in the file. Other readers ignore it. A
/// tensor that is renamed in the file loses its id. With [`pytorch`](CheckpointStore::pytorch), ids
/// of parameters that share a tensor are recorded by the path of the parameter.
///
/// # Tied parameters
///
/// A module can have one parameter under several paths, for example as its embedding and as its
/// output layer. The parameter is saved once, under the first of its names in sorted order. The
/// metadata lists the other names, as in files of `safetensors.torch.save_model`. Loading finds the
/// tensor under all of its names, in files of both origins. If the file ties two parameters that
/// the module does not tie, both parameters get the tensor.
///
/// Two parameters are tied if they have the same id and would be saved as the same bits. Parameters
/// with an id that occurs several times are read from their device once more, to compare the bits.
/// A clone of a module has the same ids; once one of the two has changed, they are saved apart.
///
/// Readers that do not know this convention miss the other names: burn-store, candle and the
/// `safetensors` crate among them. [`save_options`](CheckpointStore::save_options) without
/// [`tied`](SaveOptions::tied) save the parameter under each of its names for them.
///
/// # Dtypes
///
/// A parameter takes over the dtype that its tensor has in the file: after a load of an F16 file,
/// burn panics at an input of F32 (`dtype mismatch`).
/// [`load_options`](CheckpointStore::load_options) can convert tensors while they are read, as with `LoadOptions::new().floats_as(Dtype::F32)`. A
/// [`FloatCastAdapter`](crate::FloatCastAdapter), given to
/// [`with_from_adapter`](CheckpointStore::with_from_adapter), converts them afterwards.
///
/// A [quantised weight](safetensors_core::quantized) is an error, also where it is stored under other
/// names than the parameter's. [`LoadOptions::quantized`] reads its numbers instead, or the codes.
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
    /// The first pattern that is not a regular expression.
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
    /// Makes a store for a path. It opens nothing yet.
    ///
    /// To load, the path is a file, an index of shards or a directory, as for
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open). To save, the path is a file. With
    /// [`max_shard_size`](CheckpointStore::max_shard_size) the store saves to a directory.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self::at(StorePlace::Path(path.into()))
    }

    /// Makes a store in memory, for the bytes of a file, or for a module to be saved. The bytes are
    /// not copied.
    ///
    /// It replaces its bytes at each save, and always has one file:
    /// [`max_shard_size`](CheckpointStore::max_shard_size) has no effect.
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

    /// Makes a store that loads from a checkpoint that is already open: from a bucket, from files in
    /// memory, or from a server or in a browser, where the tensors have been [fetched] before. It
    /// does not save.
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
        Self::at(StorePlace::of(checkpoint))
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

    /// An error if an option was given a pattern that is not a regular expression.
    fn check_patterns(&self) -> Result<()> {
        match &self.bad_pattern {
            None => Ok(()),
            Some(error) => Err(StoreError::Pattern(error.clone()).into()),
        }
    }

    /// Returns the checkpoint, opened at the first call.
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
    /// A store in memory without bytes, as `from_bytes(None)` makes it.
    fn default() -> Self {
        Self::from_bytes(None)
    }
}

impl ModuleStore for CheckpointStore {
    type Error = Error;

    /// Saves the module's parameters that pass the filter: to one file or to shards, atomically, or
    /// to memory.
    ///
    /// # Errors
    ///
    /// [`FileExists`](safetensors_core::ErrorKind::FileExists) unless
    /// [`overwrite`](CheckpointStore::overwrite) is set;
    /// [`NothingSelected`](safetensors_core::ErrorKind::NothingSelected) if the filter leaves no
    /// parameter; [`StoreError::IndexDestination`]; [`StoreError::Pattern`];
    /// [`StoreError::Panicked`] if the backend or an adapter panics; an error of
    /// [`safetensors_core::save()`] or [`save_sharded`](safetensors_core::save_sharded).
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
    /// [`ApplyError`](crate::ApplyError) or [`StoreError::Transposed`] for the first tensor that
    /// does not fit its parameter; [`StoreError::Missing`];
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization); [`StoreError::ParamIds`] and
    /// [`StoreError::NoParamIds`] with [`param_ids(true)`](CheckpointStore::param_ids);
    /// [`StoreError::Pattern`]; [`StoreError::Panicked`]; an error of
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open) or of
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
