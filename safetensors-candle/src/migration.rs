//! From candle's own loaders to this crate: replacements, differences and recipes.
//!
//! This module has no items. The names are from candle 0.11.
//!
//! # Building a model
//!
//! | candle | here |
//! |---|---|
//! | `VarBuilder::from_mmaped_safetensors` of one file (`unsafe`) | [`var_builder()`] |
//! | `from_mmaped_safetensors` of the files that an index names | [`var_builder()`] of the index or of its directory |
//! | `from_mmaped_safetensors` of any other files | [`var_builder_from`] of [`Checkpoint::open_files`] |
//! | `VarBuilder::from_buffered_safetensors`, `from_slice_safetensors` | [`var_builder_from`] of [`Checkpoint::from_source`] |
//! | `VarBuilder::from_backend` | the same, with [`CheckpointBackend`]; or [`var_builder_from`] an open checkpoint |
//! | `VarBuilder::from_npz` | [`var_builder_from`] of `safetensors_formats::open` |
//! | `VarBuilder::from_pth`, `from_pth_with_state` | the same, with the feature `pytorch` of `safetensors-formats`; names keep the key: `.pp("state_dict")` |
//! | `VarBuilder::from_varmap`, `from_tensors`, `zeros` | unchanged: they read no file |
//! | `VarBuilder::rename`, `rename_f`, `pp`, `set_prefix`, `to_dtype`, `set_device` | unchanged: they work on every builder |
//! | `ShardedSafeTensors::var_builder` (`unsafe`) | [`tensor_parallel_var_builder`] |
//! | a builder that hides tensors by their names | [`CheckpointBackend::filter`]; candle has none |
//! | `from_gguf` of a quantised model of candle-transformers | unchanged, with the `content` and the `reader` of a `GgufFile` of the module `gguf` |
//! | `quantized_var_builder::VarBuilder::from_gguf` of candle-transformers | its `from_gguf_buffer`, with all bytes that this `reader` reads |
//!
//! Models of candle-transformers take the builder like candle's own. Only models that name the type
//! `ShardedVarBuilder` need [another line](crate::tensor_parallel).
//!
//! # Loading tensors
//!
//! | `candle_core` | here |
//! |---|---|
//! | `safetensors::load` | [`load()`]; with options: [`load_with`] |
//! | `safetensors::load_buffer` | [`load_from`] of [`Checkpoint::from_source`] |
//! | `safetensors::MmapedSafetensors::new`, `multi` (`unsafe`) | [`Checkpoint::open`]; mapped: [`Checkpoint::mmap`] (`unsafe`) |
//! | `safetensors::SliceSafetensors`, `BufferedSafetensors` | [`SafeTensors::from_source`] of a `&[u8]` or a `Vec<u8>` |
//! | their `get`, `tensors` | [`Checkpoint::tensor`], [`Checkpoint::tensors`] |
//! | their `load(name, device)` | [`Checkpoint::tensor`], then [`read_tensor`](crate::ReadTensorExt) |
//! | `safetensors::MmapedFile` | [`Checkpoint::mmap`] (`unsafe`) |
//! | `safetensors::Load` of a view | [`Candle::from_view`](framework::Framework::from_view) with [`Widening::Lossless`] |
//! | `Tensor::from_raw_buffer` | [`TensorView::new`], then [`Candle::from_view`](framework::Framework::from_view) |
//! | `DType::try_from`, `safetensors::Dtype::from` | [`to_candle_dtype`], [`from_candle_dtype`] |
//! | `VarMap::load` | [`train::load`](crate::train::load) |
//! | `Tensor::read_npy`, `read_npz`, `read_npz_by_name`, `npy::NpzTensors` | `safetensors_formats::open`, then [`load_from`] or [`read_tensor`](crate::ReadTensorExt) |
//! | `pickle::read_all`, `read_all_with_key`, `PthTensors` | the same, with the feature `pytorch` of `safetensors-formats`; names keep the key: `state_dict.fc.weight` |
//! | `pickle::read_pth_tensor_info` | the same, then [`Checkpoint::tensors`] |
//! | `Tensor::index_select` of a table that was loaded whole | [`LazyTensor::rows`], then [`read_tensor`](crate::ReadTensorExt): only the bytes of the rows are read |
//! | `quantized::gguf_file::Content::read` | `content` of a `GgufFile` of the module `gguf`, with the feature of that name |
//! | its `tensor(reader, name, device)` | `qtensor` of the same; of all tensors, in parallel: `load`, `load_with` |
//! | `quantized::ggml_file` | no counterpart: the format came before GGUF |
//! | `quantized::imatrix_file` | no counterpart: it has statistics for quantising, no weights |
//!
//! candle's reader of pickles skips tensors of I32, I16, I8 and BOOL, and copies tensors that share
//! storage. `safetensors_formats::open` does neither.
//!
//! # Saving tensors
//!
//! | candle | here |
//! |---|---|
//! | `candle_core::safetensors::save` | [`save()`]; in several files: [`save_sharded`] |
//! | `Tensor::save_safetensors(name, path)` | [`save()`] of `[(name, &tensor)]` |
//! | `candle_nn::VarMap::save` | [`train::save`](crate::train::save) |
//! | `Tensor::write_npy`, `Tensor::write_npz` | `npz::Writer` of `safetensors-formats` |
//!
//! candle writes no metadata. Its file may be incomplete after a power cut, and on Unix only the
//! owner can read it. Here [`SaveOptions`] have metadata. The new file is on the disk before it
//! replaces the old one, and keeps its mode.
//!
//! # Errors
//!
//! Builders and [`ReadTensorExt`](crate::ReadTensorExt) return candle's `Result`. Other functions
//! return [`safetensors_core::Result`]. [`IntoCandle`](crate::IntoCandle) and
//! [`IntoCore`](crate::IntoCore) convert: `Checkpoint::open(path).into_candle()?`,
//! `tensor.t().into_core()?`.
//!
//! # Where this crate is stricter
//!
//! | | candle | here |
//! |---|---|---|
//! | an integer that does not fit: −5 as U32 | wraps around: 4294967291 | [`DoesNotFit`] |
//! | a float that is not an integer: 2.7 as I64 | cut off: 2 | [`DoesNotFit`] |
//! | a conversion that does not exist | an error, after the tensor is read | [`NoConversion`], before |
//! | another shape than the model's | an error, after the tensor is read and converted | the same error, before |
//! | a header that breaks a rule of the format | partly accepted | an error for each rule |
//! | a file that changes while it is loaded | `SIGBUS`, or mixed bytes | [`Io`] |
//! | a variable that is missing in the file | an error, after some variables are set | an error, before any is set |
//! | a tensor in the file that no variable takes | ignored | an error, unless it is allowed |
//!
//! It also loads BOOL, I8, U64, C64 and three more dtypes of 8-bit floats,
//! [widened without loss](crate#dtypes).
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use safetensors_candle::var_builder_from;
//! use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
//!
//! let ids = TensorView::from_slice(&[2], &[3_i32, -5])?;
//! let scale = TensorView::from_slice(&[1], &[2.7_f32])?;
//! let bytes = serialize([("ids", ids), ("scale", scale)], &SaveOptions::new())?;
//!
//! let candle = VarBuilder::from_slice_safetensors(&bytes, DType::U32, &Device::Cpu)?;
//! assert_eq!(candle.get(2, "ids")?.to_vec1::<u32>()?, [3, 4294967291]);
//! assert_eq!(candle.get(1, "scale")?.to_vec1::<u32>()?, [2]);
//!
//! let open = |_: &std::path::Path| Ok(bytes.clone());
//! let checkpoint = Checkpoint::open_by("model.safetensors", &Limits::default(), open)?;
//! let here = var_builder_from(checkpoint, DType::U32, &Device::Cpu);
//! let error = here.get(2, "ids").unwrap_err().to_string();
//! assert!(error.contains("the value -5 of element 1 does not fit U32"), "{error}");
//! assert!(here.get(1, "scale").unwrap_err().to_string().contains("2.7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # From the Hub to a model
//!
//! Ask a client such as `hf-hub` for the index first, then for the files that the index names:
//!
//! ```
//! use candle_core::{DType, Device};
//! use safetensors_core::checkpoint::CheckpointPath;
//!
//! # let dir = tempfile::tempdir()?;
//! # let values = [0.0_f32; 6];
//! # let tensors = ["fc.weight", "fc2.weight"]
//! #     .map(|name| (name, safetensors_core::TensorView::from_slice(&[2, 3], &values).unwrap()));
//! # let options = safetensors_core::ShardOptions::new().max_shard_size(24.into());
//! # safetensors_core::save_sharded(dir.path(), tensors, &options)?;
//! # struct Repo(std::path::PathBuf);
//! # impl Repo {
//! #     fn get(&self, name: &str) -> std::io::Result<std::path::PathBuf> {
//! #         Ok(self.0.join(name))
//! #     }
//! # }
//! # let repo = Repo(dir.path().into());
//! // let repo = hf_hub::api::sync::Api::new()?.model("OWNER/NAME".to_string());
//! let index = repo.get("model.safetensors.index.json")?;
//! for shard in CheckpointPath::Index(index.clone()).files()? {
//!     let name = shard.file_name().and_then(|name| name.to_str()).ok_or("not a file name")?;
//!     repo.get(name)?;
//! }
//! let weights = safetensors_candle::var_builder(&index, DType::F32, &Device::Cpu)?;
//! # candle_nn::linear_no_bias(3, 2, weights.pp("fc"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A repository without an index has one file, `model.safetensors`. Do not resolve the link that
//! `hf-hub` returns: its target has another name, and no other files of the model next to it. The
//! feature `hub` of `safetensors-bridge` downloads all of them in one call.
//!
//! # Quantised weights
//!
//! candle's loaders convert codes without their scales, for example of DeepSeek's block-scaled FP8,
//! and the model computes with wrong numbers. Here a quantised weight is an error, unless the
//! [`LoadOptions`] ask for its numbers or codes: [an example](crate#quantised-weights).
//!
//! [`var_builder()`]: crate::var_builder()
//! [`var_builder_from`]: crate::var_builder_from
//! [`Checkpoint::open_files`]: safetensors_core::Checkpoint::open_files
//! [`Checkpoint::from_source`]: safetensors_core::Checkpoint::from_source
//! [`tensor_parallel_var_builder`]: crate::tensor_parallel_var_builder
//! [`CheckpointBackend`]: crate::CheckpointBackend
//! [`CheckpointBackend::filter`]: crate::CheckpointBackend::filter
//! [`load()`]: crate::load()
//! [`load_from`]: crate::load_from
//! [`load_with`]: crate::load_with
//! [`save()`]: crate::save()
//! [`save_sharded`]: crate::save_sharded
//! [`to_candle_dtype`]: crate::to_candle_dtype
//! [`from_candle_dtype`]: crate::from_candle_dtype
//! [`Checkpoint::open`]: safetensors_core::Checkpoint::open
//! [`Checkpoint::mmap`]: safetensors_core::Checkpoint::mmap
//! [`Checkpoint::tensor`]: safetensors_core::Checkpoint::tensor
//! [`Checkpoint::tensors`]: safetensors_core::Checkpoint::tensors
//! [`SafeTensors::from_source`]: safetensors_core::SafeTensors::from_source
//! [`LazyTensor::rows`]: safetensors_core::LazyTensor::rows
//! [`Widening::Lossless`]: safetensors_core::Widening::Lossless
//! [`LoadOptions`]: safetensors_core::LoadOptions
//! [`SaveOptions`]: safetensors_core::SaveOptions
//! [`TensorView::new`]: safetensors_core::TensorView::new
//! [`DoesNotFit`]: safetensors_core::ErrorKind::DoesNotFit
//! [`NoConversion`]: safetensors_core::ErrorKind::NoConversion
//! [`Io`]: safetensors_core::ErrorKind::Io

#[cfg(doc)]
use safetensors_core::framework;
