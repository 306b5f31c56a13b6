//! [`CheckpointStore`]: loads and saves burn modules.

mod adopt;
mod catalog;
mod filter;
mod location;
mod pack;
mod parameters;
mod plan;
mod rename;
mod ties;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use adopt::adopt;
use burn_store::{
    ApplyResult, IdentityAdapter, ModuleAdapter, ModuleSnapshot, ModuleStore, PathFilter,
};
use catalog::Catalog;
use filter::Filter;
use pack::{ModuleSource, PackTensor, collect};
use parameters::parameters;
use plan::LoadPlan;
use rename::Renames;
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::tied::Tied;
use safetensors_core::{Error, LoadOptions, Result, SaveOptions, ShardOptions, save, save_sharded};
use ties::ties;

use crate::{Burn, StoreError};

/// Loads burn modules from safetensors checkpoints and saves them to safetensors files.
///
/// The options have the same names as those of burn-store's `SafetensorsStore`, where it has them.
/// The options that take a pattern ([`with_regex`](CheckpointStore::with_regex),
/// [`with_key_remapping`](CheckpointStore::with_key_remapping)) return a [`Result`]. It is an error
/// if the pattern is not a regular expression.
///
/// Loading differs from `SafetensorsStore` in these points:
///
/// - The path may be a file, an index of shards (`*.json`), or the directory that holds either.
/// - Headers are parsed once. Tensors are read in parallel, each once.
/// - All tensors are checked and read before the module changes. If loading fails, the module stays
///   as it was. During loading, memory holds the new and the old values.
/// - Loading does not initialize parameters that have no value yet.
///
/// A store opens its checkpoint when it first needs it, and keeps it open. Only a new store sees
/// files that another program puts at the path later.
///
/// Saving differs in these points:
///
/// - An existing file is always replaced. The old file stays until the new one is complete.
/// - With [`max_shard_size`](CheckpointStore::max_shard_size) the store writes shards.
/// - A parameter that the module has under several paths is saved once, see below.
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
/// whose id occurs several times are read from their device once more, to compare the bits. A clone
/// of a module has the same ids; once one of the two has changed, they are saved apart.
/// [`save_options`](CheckpointStore::save_options) without [`SaveOptions::tied`] saves every path.
///
/// # Dtypes
///
/// A parameter takes over the dtype that its tensor has in the file, and keeps its id.
/// [`load_options`](CheckpointStore::load_options) can convert tensors while they are read. A
/// [`FloatCastAdapter`](crate::FloatCastAdapter), given to
/// [`with_from_adapter`](CheckpointStore::with_from_adapter), converts them afterwards.
///
/// Quantised weights that have scales are multiplied by them if [`LoadOptions::scaled_weights`]
/// asks for it. Converting them without their scales is an error, as in [`load`](crate::load()).
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
/// let mut store = CheckpointStore::from_file(&path).with_regex(r"^encoder\.")?;
/// let mut fresh = Model::new(&device);
/// let result = fresh.load_from(&mut store)?;
/// assert_eq!(result.applied, ["encoder.weight", "encoder.bias"]);
/// assert_eq!(result.skipped, ["head.bias", "head.weight"]);
/// assert_eq!(store.keys()?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CheckpointStore {
    path: PathBuf,
    filter: Filter,
    renames: Renames,
    load_options: LoadOptions,
    save_options: SaveOptions,
    max_shard_size: Option<MaxShardSize>,
    from_adapter: Box<dyn ModuleAdapter>,
    to_adapter: Box<dyn ModuleAdapter>,
    allow_partial: bool,
    validate: bool,
    skip_enum_variants: bool,
    catalog: Option<Arc<Catalog>>,
}

impl CheckpointStore {
    /// Makes a store for a path. It opens nothing yet.
    ///
    /// To load, the path is a file, an index of shards or a directory, as for
    /// [`Checkpoint::open`](safetensors_core::Checkpoint::open). To save, the path is a file, which
    /// is replaced if it exists. With [`max_shard_size`](CheckpointStore::max_shard_size) the store
    /// saves to a directory.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            filter: Filter::default(),
            renames: Renames::default(),
            load_options: LoadOptions::new().for_framework::<Burn>(),
            // transformers refuses a file of another `format`.
            save_options: SaveOptions::new().metadata([("format", "pt")]).tied(Tied::new()),
            max_shard_size: None,
            from_adapter: Box::new(IdentityAdapter),
            to_adapter: Box::new(IdentityAdapter),
            allow_partial: false,
            validate: true,
            skip_enum_variants: false,
            catalog: None,
        }
    }

    /// Loads or saves only the parameters whose path in the module the filter matches. This
    /// replaces earlier paths and predicates, but not patterns.
    #[must_use]
    pub fn filter(mut self, filter: PathFilter) -> Self {
        self.filter.paths = filter;
        self
    }

    /// Loads or saves only the parameters whose path in the module matches a regular expression.
    /// If several patterns or paths are given, one match is enough.
    ///
    /// # Errors
    ///
    /// [`StoreError::Pattern`] if `pattern` is not a regular expression.
    pub fn with_regex(mut self, pattern: impl AsRef<str>) -> Result<Self> {
        self.filter.add_pattern(pattern.as_ref())?;
        Ok(self)
    }

    /// Loads or saves the parameter of this path.
    #[must_use]
    pub fn with_full_path(mut self, path: impl Into<String>) -> Self {
        self.filter.paths = self.filter.paths.with_full_path(path);
        self
    }

    /// Loads or saves the parameters of these paths.
    #[must_use]
    pub fn with_full_paths(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.filter.paths = self.filter.paths.with_full_paths(paths);
        self
    }

    /// Loads or saves the parameters for which the predicate returns `true`. Its first argument is
    /// the path of the parameter. Its second argument lists the types that contain the parameter,
    /// outermost first and joined with dots: `Struct:Model.Struct:Linear`.
    #[must_use]
    pub fn with_predicate(mut self, predicate: fn(&str, &str) -> bool) -> Self {
        self.filter.paths = self.filter.paths.with_predicate(predicate);
        self
    }

    /// Loads or saves all parameters. The other filters then have no effect.
    #[must_use]
    pub fn match_all(mut self) -> Self {
        self.filter.paths = self.filter.paths.match_all();
        self
    }

    /// Replaces each match of the pattern in tensor names. Loading applies the rule to the names of
    /// the file, before they are compared with those of the module. Saving applies it to the names
    /// of the module, before they are written. The replacement may refer to groups (`$1`). Several
    /// rules apply one after the other.
    ///
    /// # Errors
    ///
    /// [`StoreError::Pattern`] if `pattern` is not a regular expression.
    pub fn with_key_remapping(
        mut self,
        pattern: impl AsRef<str>,
        replacement: impl Into<String>,
    ) -> Result<Self> {
        self.renames.add(pattern.as_ref(), replacement.into())?;
        self.catalog = None;
        Ok(self)
    }

    /// Adds an entry to the `__metadata__` of a saved file. By default the metadata has
    /// `format` = `pt`.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.save_options = self.save_options.metadata([(key.into(), value.into())]);
        self
    }

    /// Replaces all options for saving, including the metadata and [`tied`](SaveOptions::tied). If
    /// the new options do not set `tied`, each path of a parameter is saved. `format` = `pt` is
    /// then added only to the files of a checkpoint of several shards.
    #[must_use]
    pub fn save_options(mut self, options: SaveOptions) -> Self {
        self.save_options = options;
        self
    }

    /// Saves to a directory at the store's path, which is created if it does not exist. The
    /// directory gets one file, or several files and an index. No file is larger than `size`,
    /// unless it holds a single tensor that is larger. See
    /// [`save_sharded`](safetensors_core::save_sharded) for the names of the files, and for the
    /// files that are replaced.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let device = Device::default();
    /// let trained: Linear = LinearConfig::new(16, 16).init(&device);
    /// trained.save_into(
    ///     &mut CheckpointStore::from_file(dir.path()).max_shard_size("1KB".parse()?),
    /// )?;
    /// assert!(dir.path().join("model.safetensors.index.json").exists());
    ///
    /// let mut fresh: Linear = LinearConfig::new(16, 16).init(&device);
    /// fresh.load_from(&mut CheckpointStore::from_file(dir.path()))?;
    /// assert_eq!(fresh.weight.to_data(), trained.weight.to_data());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_shard_size(mut self, size: MaxShardSize) -> Self {
        self.max_shard_size = Some(size);
        self
    }

    /// Sets the options for loading: the number of reading threads, who receives the progress, the
    /// conversion of dtypes, and whether dtypes that burn lacks may be widened. If they may not, it
    /// is an error to load a tensor of such a dtype. A tensor that is not loaded may have any
    /// dtype.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{DType, Device};
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
    /// use safetensors_core::{Dtype, LoadOptions};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let device = Device::default();
    /// let mut model: Linear = LinearConfig::new(4, 2).init(&device);
    /// model.save_into(&mut CheckpointStore::from_file(&path))?;
    ///
    /// let options = LoadOptions::new().threads(2).floats_as(Dtype::F64);
    /// model.load_from(&mut CheckpointStore::from_file(&path).load_options(options))?;
    /// assert_eq!(model.weight.val().dtype(), DType::F64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.load_options = options.for_framework::<Burn>();
        self.catalog = None;
        self
    }

    /// Adapts tensors on loading, for example with
    /// [`PyTorchToBurnAdapter`](crate::PyTorchToBurnAdapter).
    #[must_use]
    pub fn with_from_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.from_adapter = Box::new(adapter);
        self
    }

    /// Adapts tensors on saving, for example with
    /// [`BurnToPyTorchAdapter`](crate::BurnToPyTorchAdapter).
    #[must_use]
    pub fn with_to_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.to_adapter = Box::new(adapter);
        self
    }

    /// Whether the checkpoint may lack parameters. Such parameters then stay as they are. By
    /// default a missing parameter is an error.
    #[must_use]
    pub fn allow_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// Whether a tensor of another shape or kind than its parameter is an error, which is the
    /// default. With `false`, the parameter stays as it is, and [`ApplyResult::errors`] lists the
    /// mismatch.
    #[must_use]
    pub fn validate(mut self, validate: bool) -> Self {
        self.validate = validate;
        self
    }

    /// Whether the paths of the module leave out the names of enum variants. PyTorch models have no
    /// such names.
    #[must_use]
    pub fn skip_enum_variants(mut self, skip: bool) -> Self {
        self.skip_enum_variants = skip;
        self
    }

    /// The checkpoint, opened at the first call.
    fn catalog(&mut self) -> Result<&Arc<Catalog>> {
        match self.catalog {
            Some(ref catalog) => Ok(catalog),
            None => {
                let catalog = Catalog::open(&self.path, &self.renames, &self.load_options)?;
                Ok(self.catalog.insert(Arc::new(catalog)))
            }
        }
    }

    /// An error if the plan has a problem that the options do not allow.
    fn check(&self, plan: &mut LoadPlan) -> Result<()> {
        if let Some(error) = plan.mismatch.take().filter(|_| self.validate) {
            return Err(error);
        }
        if !self.allow_partial && !plan.result.missing.is_empty() {
            let names = plan.result.missing.iter().map(|(path, _)| path.clone()).collect();
            return Err(self.locate(Error::framework::<Burn>(StoreError::Missing { names })));
        }
        Ok(())
    }

    fn locate(&self, error: Error) -> Error {
        error.in_path(&self.path)
    }
}

impl ModuleStore for CheckpointStore {
    type Error = Error;

    /// Saves the module's parameters that pass the filter. They are saved to one file, atomically,
    /// which is replaced if it exists; or to shards.
    fn collect_from<M: ModuleSnapshot>(&mut self, module: &M) -> Result<()> {
        self.catalog = None;
        if self.path.extension().is_some_and(|extension| extension == "json") {
            return Err(self.locate(Error::framework::<Burn>(StoreError::IndexDestination)));
        }
        let tensors = collect(module, &self.filter, &*self.to_adapter, self.skip_enum_variants);
        let ties = ties(&tensors).map_err(|error| self.locate(error))?;
        let sources = tensors.into_iter().zip(ties).map(|((_, tensor), tie)| {
            let source = ModuleSource::new(tensor, tie).map_err(|error| self.locate(error))?;
            Ok((self.renames.apply(source.name()), source))
        });
        let sources = sources.collect::<Result<Vec<_>>>()?;
        match self.max_shard_size {
            None => save(&self.path, sources, &self.save_options),
            Some(size) => {
                let options = ShardOptions::new()
                    .max_shard_size(size)
                    .save_options(self.save_options.clone());
                save_sharded(&self.path, sources, &options).map(drop)
            }
        }
    }

    /// Loads the module's parameters that pass the filter. After an error the module is unchanged.
    fn apply_to<M: ModuleSnapshot>(&mut self, module: &mut M) -> Result<ApplyResult> {
        let catalog = Arc::clone(self.catalog()?);
        let parameters = parameters(module, self.skip_enum_variants);
        let mut plan = LoadPlan::new(&parameters, &catalog, &self.filter, &*self.from_adapter);
        self.check(&mut plan)?;
        let (data, result) = plan.read(&catalog, &self.load_options)?;
        *module =
            adopt(module, data, self.skip_enum_variants).map_err(|error| self.locate(error))?;
        Ok(result)
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
