//! How a [`CheckpointStore`] loads and saves.

use burn_store::ModuleAdapter;
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::header::Metadata;
use safetensors_core::{LoadOptions, SaveOptions};

use super::CheckpointStore;
use crate::Burn;

/// # Saving
impl CheckpointStore {
    /// Sets whether a file that exists is replaced. Off by default: saving then fails with
    /// [`ErrorKind::FileExists`](safetensors_core::ErrorKind::FileExists), also if the file appears
    /// while the save is under way. The old file stays until the new one is complete.
    ///
    /// A store in memory always replaces its bytes.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Returns the metadata of a saved file, if nothing else is asked for: `format` = `pt`, and
    /// this crate with its version as the `producer`.
    pub fn default_metadata() -> Metadata {
        // A value that is the name of a tensor would make the key an alias of it. So no value is
        // the version alone: `0.1.0` is the path of a parameter in nested lists.
        let producer = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        // transformers refuses a file of another `format`.
        let entries = [("format", "pt"), ("producer", producer)];
        entries.map(|(key, value)| (key.into(), value.into())).into()
    }

    /// Adds an entry to the `__metadata__` of a saved file, which has the
    /// [default ones](CheckpointStore::default_metadata) too.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.save_options = self.save_options.metadata([(key.into(), value.into())]);
        self
    }

    /// Removes all entries of the metadata that were given so far, also the default ones and the
    /// ids of parameters. transformers refuses a file without `format`.
    ///
    /// A save still records the names of tied parameters, which loading needs. Shards always have a
    /// `format`. Without the ids, two modules of equal values are saved as equal bytes.
    #[must_use]
    pub fn clear_metadata(mut self) -> Self {
        self.save_options = self.save_options.clear_metadata();
        self.records_ids = false;
        self
    }

    /// Replaces all options of the core for saving, including the metadata and
    /// [`tied`](SaveOptions::tied). If the new options do not set `tied`, each path of a parameter
    /// is saved, see *Tied parameters* above. `format` = `pt` is added only to the files of a
    /// checkpoint of several shards.
    ///
    /// ```
    /// use safetensors_burn::CheckpointStore;
    /// use safetensors_core::SaveOptions;
    ///
    /// // For burn-store or candle, which do not know the other names of tied parameters.
    /// let options = SaveOptions::new().metadata(CheckpointStore::default_metadata());
    /// let store = CheckpointStore::from_file("model.safetensors").save_options(options);
    /// ```
    ///
    /// [`overwrite`](CheckpointStore::overwrite) is an option of the store. The one of the new
    /// options has no effect.
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
}

/// # Loading
impl CheckpointStore {
    /// Sets the options for loading: the number of reading threads, who receives the progress, the
    /// conversion of dtypes, how [quantised weights](LoadOptions::quantized) are read, and whether
    /// dtypes that burn lacks may be widened. If they may not, it
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

    /// Limits how much loading needs on top of the module: at most this many bytes of new values at
    /// a time. A tensor counts with its bytes in the file or as loaded, whichever are more. Loading
    /// then goes in steps: the parameters of a step take over their new values, and release the old
    /// ones, before more is read. A larger tensor takes a separate step. Without a limit, which is
    /// the default, all new values are read first.
    ///
    /// On a GPU, new values leave the memory of the host at the end of their step. So a model of
    /// any size is loaded with a little more memory than the limit, or than the largest tensor. In
    /// the memory of the host, a module that was just made by `init` has no old values, so for it a
    /// limit gains nothing.
    ///
    /// Names, shapes, kinds and dtypes need no data, and are still checked before anything changes.
    /// But if a later step fails, some parameters have new values and the others old ones. The
    /// error is then [`StoreError::PartlyLoaded`](crate::StoreError::PartlyLoaded). A progress
    /// callback counts the bytes of each step separately.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use safetensors_burn::{CheckpointStore, ModuleSnapshot};
    ///
    /// let mut model: Linear = LinearConfig::new(4, 2).init(&Device::default());
    /// let mut store = CheckpointStore::from_bytes(None);
    /// model.save_into(&mut store)?;
    /// model.load_from(&mut store.max_extra_memory(256 << 20))?;
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[must_use]
    pub fn max_extra_memory(mut self, bytes: u64) -> Self {
        self.max_extra_memory = bytes;
        self
    }

    /// Sets whether loading gives parameters the ids that the file records. Off by default, see
    /// *Ids of parameters* above. With `true`, ids are saved even after a
    /// [`clear_metadata`](CheckpointStore::clear_metadata).
    ///
    /// A parameter keeps its own id if the file has none for it, or if two parameters that have two
    /// ids now would get the same one: their gradients and states would be mixed up. It is an error
    /// if the file records no ids at all, like every file of another program.
    #[must_use]
    pub fn param_ids(mut self, param_ids: bool) -> Self {
        self.param_ids = param_ids;
        self.records_ids |= param_ids;
        self.catalog = None;
        self
    }

    /// Sets whether the checkpoint may lack parameters. Such parameters then stay as they are. By
    /// default a missing parameter is an error.
    #[must_use]
    pub fn allow_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// Sets whether a tensor of another shape or kind than its parameter is an error, which is the
    /// default. With `false`, the parameter stays as it is, and
    /// [`ApplyResult::errors`](crate::ApplyResult::errors) lists the mismatch.
    #[must_use]
    pub fn validate(mut self, validate: bool) -> Self {
        self.validate = validate;
        self
    }

    /// Sets whether the paths of the module leave out the names of enum variants. PyTorch models
    /// have no such names.
    #[must_use]
    pub fn skip_enum_variants(mut self, skip: bool) -> Self {
        self.skip_enum_variants = skip;
        self
    }
}

/// # Adapters
impl CheckpointStore {
    /// Adapts tensors on loading, for example with
    /// [`PyTorchToBurnAdapter`](crate::PyTorchToBurnAdapter). For files of PyTorch,
    /// [`pytorch`](CheckpointStore::pytorch) covers more layers.
    #[must_use]
    pub fn with_from_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.from_adapter = Box::new(adapter);
        self
    }

    /// Adapts tensors on saving, for example with
    /// [`BurnToPyTorchAdapter`](crate::BurnToPyTorchAdapter). For files of PyTorch,
    /// [`pytorch`](CheckpointStore::pytorch) covers more layers.
    #[must_use]
    pub fn with_to_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.to_adapter = Box::new(adapter);
        self
    }
}

/// # PyTorch
impl CheckpointStore {
    /// Sets whether files have PyTorch's names and shapes. The default is `false`: the names and
    /// shapes of the module. This holds for loading and for saving; see the module
    /// [`pytorch`](crate::pytorch) for the layers that differ, with an example.
    ///
    /// `true` also sets [`skip_enum_variants`](CheckpointStore::skip_enum_variants), because
    /// PyTorch has no enum variants.
    ///
    /// Transposed and split parameters are copied once more, one after the other: for a moment,
    /// memory holds one tensor of the file twice.
    #[must_use]
    pub fn pytorch(mut self, pytorch: bool) -> Self {
        self.layout.pytorch = pytorch;
        self.skip_enum_variants |= pytorch;
        self
    }

    /// Sets whether the query, key and value of `MultiHeadAttention` are saved in one tensor, as
    /// PyTorch's `MultiheadAttention` has them (`in_proj_weight`, `out_proj`). This is the default.
    /// With `false` they are saved as separate linear layers, by their names in burn (`query`,
    /// `key`, `value`, `output`), as most published transformers have them.
    ///
    /// Loading finds both forms. The option has an effect only together with
    /// [`pytorch`](CheckpointStore::pytorch).
    #[must_use]
    pub fn fused_attention(mut self, fused: bool) -> Self {
        self.layout.fused_attention = fused;
        self
    }
}
