//! From burn-store's `SafetensorsStore` to [`CheckpointStore`]: each option, and the differences.
//! This module has no items. The names are from burn-store 0.22.
//!
//! Each reads the files of the other, except as the tables say. In most programs only the name of
//! the type changes:
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use safetensors_burn::{CheckpointStore, ModuleSnapshot, PyTorchToBurnAdapter};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! # let mut model: Linear = LinearConfig::new(4, 2).init(&Device::default());
//! # let pytorch = safetensors_burn::BurnToPyTorchAdapter;
//! # let saved = CheckpointStore::from_file(&path).with_to_adapter(pytorch);
//! # model.save_into(&mut saved.with_key_remapping("^", "model."))?;
//! // Before: SafetensorsStore::from_file(&path)
//! let mut store = CheckpointStore::from_file(&path)
//!     .with_from_adapter(PyTorchToBurnAdapter)
//!     .with_key_remapping(r"^model\.", "")
//!     .allow_partial(true);
//! let result = model.load_from(&mut store)?;
//! assert_eq!(result.applied.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Option by option
//!
//! | `SafetensorsStore` | here |
//! |---|---|
//! | `from_file` | [`from_file`]; the path may also be a directory or an index of shards |
//! | `from_bytes`, `get_bytes`, `default` | [`from_bytes`], [`get_bytes`], `default` |
//! | `filter` | [`filter`] |
//! | `with_regex`, `with_regexes` | [`with_regex`], [`with_regexes`]; a bad pattern is an error at the first use, not a panic |
//! | `with_full_path`, `with_full_paths` | [`with_full_path`], [`with_full_paths`] |
//! | `with_predicate`, `with_predicates` | [`with_predicate`], [`with_predicates`]; on saving, too, they get the types that contain the parameter |
//! | `match_all` | [`match_all`] |
//! | `remap(KeyRemapper)` | [`remap(rules.patterns)`][`remap`], or [`with_key_remapping`], which needs no `KeyRemapper` |
//! | `with_key_remapping` | [`with_key_remapping`]; a bad pattern is an error at the first use, not a panic |
//! | `map_indices_contiguous`, `map_indices_contiguous_except` | [`map_indices_contiguous`], [`map_indices_contiguous_except`] |
//! | `metadata`, `clear_metadata` | [`metadata`], [`clear_metadata`] |
//! | `default_metadata` | [`default_metadata`], with `format` = `pt`, because transformers refuses burn-store's `safetensors`; the `producer` is this crate with its version |
//! | `validate`, `allow_partial`, `skip_enum_variants` | [`validate`], [`allow_partial`], [`skip_enum_variants`] |
//! | `overwrite` | [`overwrite`], off by default as there; it also protects a directory of shards |
//! | `with_from_adapter`, `with_to_adapter` | [`with_from_adapter`], [`with_to_adapter`]. For files of PyTorch, [`pytorch(true)`][`pytorch`] covers more layers |
//! | `SafetensorsStoreError` | [`safetensors_core::Error`]; its `source()` is a [`StoreError`] or an [`ApplyError`], by `downcast_ref` |
//! | nothing | [`pytorch`], [`fused_attention`], [`max_shard_size`], [`load_options`], [`save_options`], [`max_extra_memory`], [`param_ids`], [`prefix`] |
//!
//! # What differs
//!
//! | | burn-store | here |
//! |---|---|---|
//! | a load that fails | may have changed some parameters | leaves the module unchanged |
//! | a load whose backend panics | ends the process | an error, and the module is unchanged |
//! | ids of parameters | dropped; a module keeps its own | [saved](CheckpointStore#ids-of-parameters); a module keeps its own, unless [`param_ids(true)`][`param_ids`] gives it the file's |
//! | a parameter under several paths | saved under each path | [saved once](CheckpointStore#tied-parameters). For burn-store, give [`save_options`] that do not set `tied` |
//! | two tensors that get the same name | a load takes one of them; a save fails with an index that is out of bounds | an error with the reason |
//! | a filter or a prefix that matches nothing | an empty file, or a load of nothing | an error |
//! | a matrix that fits transposed | shapes that differ | the error reports it, and names the option for files of PyTorch |
//! | a file with U16, FP8 or another dtype that burn-store lacks | an error, even if no parameter needs it | loaded, [widened](crate#dtypes) if burn lacks the dtype |
//! | booleans | the integers in which the backend stores them | BOOL |
//! | the header | parsed again for each tensor | parsed once |
//!
//! # From burn 0.21 and older
//!
//! burn 0.22 reads no files of recorders. `safetensors convert model.mpk model.safetensors` makes a
//! file for [`CheckpointStore`] from a file of the default recorder of burn 0.14 to 0.21, with the
//! ids of the parameters. In a program, `safetensors_formats::open` with the feature `burn` reads
//! it.
//!
//! For a program without safetensors, `safetensors convert model.safetensors model.bpk` makes the
//! file that burn 0.22 reads as a `ModuleRecord`, and burn-store's `BurnpackStore` since 0.20.
//!
//! [`pytorch`]: CheckpointStore::pytorch
//! [`fused_attention`]: CheckpointStore::fused_attention
//! [`from_file`]: CheckpointStore::from_file
//! [`from_bytes`]: CheckpointStore::from_bytes
//! [`get_bytes`]: CheckpointStore::get_bytes
//! [`filter`]: CheckpointStore::filter
//! [`with_regex`]: CheckpointStore::with_regex
//! [`with_regexes`]: CheckpointStore::with_regexes
//! [`with_full_path`]: CheckpointStore::with_full_path
//! [`with_full_paths`]: CheckpointStore::with_full_paths
//! [`with_predicate`]: CheckpointStore::with_predicate
//! [`with_predicates`]: CheckpointStore::with_predicates
//! [`match_all`]: CheckpointStore::match_all
//! [`remap`]: CheckpointStore::remap
//! [`with_key_remapping`]: CheckpointStore::with_key_remapping
//! [`map_indices_contiguous`]: CheckpointStore::map_indices_contiguous
//! [`map_indices_contiguous_except`]: CheckpointStore::map_indices_contiguous_except
//! [`metadata`]: CheckpointStore::metadata
//! [`clear_metadata`]: CheckpointStore::clear_metadata
//! [`default_metadata`]: CheckpointStore::default_metadata
//! [`validate`]: CheckpointStore::validate
//! [`allow_partial`]: CheckpointStore::allow_partial
//! [`skip_enum_variants`]: CheckpointStore::skip_enum_variants
//! [`overwrite`]: CheckpointStore::overwrite
//! [`with_from_adapter`]: CheckpointStore::with_from_adapter
//! [`with_to_adapter`]: CheckpointStore::with_to_adapter
//! [`max_shard_size`]: CheckpointStore::max_shard_size
//! [`load_options`]: CheckpointStore::load_options
//! [`save_options`]: CheckpointStore::save_options
//! [`max_extra_memory`]: CheckpointStore::max_extra_memory
//! [`param_ids`]: CheckpointStore::param_ids
//! [`prefix`]: CheckpointStore::prefix

#[cfg(doc)]
use crate::{ApplyError, CheckpointStore, StoreError};
