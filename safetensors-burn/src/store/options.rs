//! How a [`CheckpointStore`] loads and saves.

use burn_store::ModuleAdapter;
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::header::Metadata;
use safetensors_core::{LoadOptions, SaveOptions};

use super::CheckpointStore;
use crate::Burn;

/// # Saving
impl CheckpointStore {
    /// Sets whether a file that exists is replaced. By default saving then fails with
    /// [`ErrorKind::FileExists`](safetensors_core::ErrorKind::FileExists), even if the file appears
    /// during the save. The old file stays until the new one is complete.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Returns the metadata of a saved file by default: `format` = `pt`, and this crate with its
    /// version as the `producer`.
    pub fn default_metadata() -> Metadata {
        // A value that is the name of a tensor would make the key an alias of it. So no value is
        // the version alone: `0.1.0` is the path of a parameter in nested lists.
        let producer = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        // transformers refuses a file of another `format`.
        let entries = [("format", "pt"), ("producer", producer)];
        entries.map(|(key, value)| (key.into(), value.into())).into()
    }

    /// Adds an entry to the `__metadata__` of a saved file, next to the [default
    /// ones](CheckpointStore::default_metadata).
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.save_options = self.save_options.metadata([(key.into(), value.into())]);
        self
    }

    /// Removes all entries of the metadata, also the default ones and the ids of parameters, so
    /// that modules of equal values are saved as equal bytes. transformers refuses a file without
    /// `format`.
    #[must_use]
    pub fn clear_metadata(mut self) -> Self {
        self.save_options = self.save_options.clear_metadata();
        self.records_ids = false;
        self
    }

    /// Replaces all options of the core for saving, including the metadata and
    /// [`tied`](SaveOptions::tied). Without `tied`, each path of a parameter is saved.
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
    /// The option [`overwrite`](CheckpointStore::overwrite) of the core has no effect.
    #[must_use]
    pub fn save_options(mut self, options: SaveOptions) -> Self {
        self.save_options = options;
        self
    }

    /// Saves to a directory at the store's path, as one file, or several files and an index. No
    /// file is larger than `size`, unless it holds a single larger tensor. See
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
    /// Sets the options for loading: threads, progress, the conversion of dtypes, how [quantised
    /// weights](LoadOptions::quantized) are read, and whether dtypes that burn lacks may be
    /// widened.
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

    /// Loads in steps of at most this many bytes of new values, so that loading needs little more
    /// memory than the module. By default all new values are read first.
    ///
    /// The parameters of a step release their old values before more is read. On a GPU, new values
    /// leave the memory of the host at the end of their step. A larger tensor takes a separate
    /// step. A module in the memory of the host that was just made by `init` gains nothing.
    ///
    /// Names, shapes, kinds and dtypes are still checked before anything changes. But if a later
    /// step fails, some parameters have new values:
    /// [`StoreError::PartlyLoaded`](crate::StoreError::PartlyLoaded). A progress callback counts
    /// each step separately.
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

    /// Sets whether loading gives parameters the ids in the file. Off by default, see *Ids of
    /// parameters* above. With `true`, ids are saved even after a
    /// [`clear_metadata`](CheckpointStore::clear_metadata).
    ///
    /// A parameter keeps its own id if the file has none for it, or if two parameters with
    /// different ids would get the same one. A file without any ids is an error.
    #[must_use]
    pub fn param_ids(mut self, param_ids: bool) -> Self {
        self.param_ids = param_ids;
        self.records_ids |= param_ids;
        self.catalog = None;
        self
    }

    /// Sets whether the checkpoint may lack parameters, which then stay unchanged. Off by default.
    #[must_use]
    pub fn allow_partial(mut self, allow: bool) -> Self {
        self.allow_partial = allow;
        self
    }

    /// Sets whether a tensor of another shape or kind than its parameter is an error, which is the
    /// default. With `false`, the parameter stays unchanged, and
    /// [`ApplyResult::errors`](crate::ApplyResult::errors) lists the mismatch.
    #[must_use]
    pub fn validate(mut self, validate: bool) -> Self {
        self.validate = validate;
        self
    }

    /// Sets whether paths omit the names of enum variants, which PyTorch models do not have.
    #[must_use]
    pub fn skip_enum_variants(mut self, skip: bool) -> Self {
        self.skip_enum_variants = skip;
        self
    }
}

/// # Adapters
impl CheckpointStore {
    /// Adapts tensors on loading. For files of PyTorch, [`pytorch`](CheckpointStore::pytorch)
    /// covers more layers than [`PyTorchToBurnAdapter`](crate::PyTorchToBurnAdapter).
    #[must_use]
    pub fn with_from_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.from_adapter = Box::new(adapter);
        self
    }

    /// Adapts tensors on saving. For files of PyTorch, [`pytorch`](CheckpointStore::pytorch) covers
    /// more layers than [`BurnToPyTorchAdapter`](crate::BurnToPyTorchAdapter).
    #[must_use]
    pub fn with_to_adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.to_adapter = Box::new(adapter);
        self
    }
}

/// # PyTorch
impl CheckpointStore {
    /// Sets whether files have PyTorch's names and shapes, on loading and on saving. Off by
    /// default. The module [`pytorch`](crate::pytorch) lists the layers that differ.
    ///
    /// `true` also sets [`skip_enum_variants`](CheckpointStore::skip_enum_variants). Transposed and
    /// split parameters are copied once more, one at a time.
    #[must_use]
    pub fn pytorch(mut self, pytorch: bool) -> Self {
        self.layout.pytorch = pytorch;
        self.skip_enum_variants |= pytorch;
        self
    }

    /// Sets whether the query, key and value of `MultiHeadAttention` are saved in one tensor, like
    /// PyTorch's `MultiheadAttention` (`in_proj_weight`, `out_proj`). This is the default. With
    /// `false` they are separate linear layers (`query`, `key`, `value`, `output`), as in most
    /// published transformers.
    ///
    /// Loading finds both forms. The option needs [`pytorch`](CheckpointStore::pytorch).
    #[must_use]
    pub fn fused_attention(mut self, fused: bool) -> Self {
        self.layout.fused_attention = fused;
        self
    }
}
