//! Loads safetensors files as [candle](candle_core) tensors and saves tensors to such files.
//!
//! | to | use |
//! |---|---|
//! | load all tensors of a checkpoint | [`load()`], [`load_with`]; when it is open already: [`load_from`] |
//! | read one tensor, or a part of it, onto a device | [`ReadTensorExt`] |
//! | convert errors for `?`: to candle's, or to this library's | [`IntoCandle`], [`IntoCore`] |
//! | build a model | [`var_builder()`], [`var_builder_from`] |
//! | build a model with options, such as quantised weights as numbers; list the tensors that it does not use | [`CheckpointBackend`] |
//! | build one rank's part of a model | [`tensor_parallel_var_builder`]; when open: [`TensorParallelBackend`]; see [`tensor_parallel`] |
//! | save tensors to a file, or in shards | [`save()`], [`save_sharded`] |
//! | load or save a single tensor, or from memory | [`Candle`], which implements [`Framework`](safetensors_core::framework::Framework) |
//! | train: save and resume a model with its optimizer | [`train`] |
//! | quantise plain weights while they are loaded | [`quantize`] |
//! | keep experts, rows or layers within a budget of memory | [`TensorCache`](safetensors_core::framework::TensorCache) |
//! | read the quantised tensors of a GGUF file | the module `gguf`, with the feature of that name |
//! | map a dtype of the format to candle's, or back | [`to_candle_dtype`], [`from_candle_dtype`] |
//!
//! A checkpoint is a file, an index of shards, or the directory of either: see [`Checkpoint`].
//!
//! ```
//! use std::collections::HashMap;
//!
//! use candle_core::{DType, Device, Tensor};
//! use safetensors_core::SaveOptions;
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let weight = Tensor::arange(0_f32, 6.0, &Device::Cpu)?.reshape((2, 3))?;
//! let tensors = HashMap::from([("linear.weight".to_string(), weight)]);
//! safetensors_candle::save(&path, &tensors, &SaveOptions::new())?;
//!
//! let tensors = safetensors_candle::load(&path, &Device::Cpu)?;
//! assert_eq!(tensors["linear.weight"].dims(), [2, 3]);
//!
//! let builder = safetensors_candle::var_builder(&path, DType::F32, &Device::Cpu)?;
//! let linear = candle_nn::linear_no_bias(3, 2, builder.pp("linear"))?;
//! # let _ = linear;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Dtypes
//!
//! | in the file | in candle | |
//! |---|---|---|
//! | U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8_E4M3 | the same | |
//! | F4, F6_E2M3, F6_E3M2, F8_E8M0 | the same | stored on the CPU only, without arithmetic |
//! | BOOL | U8 | widened |
//! | I8 | I16 | widened |
//! | U16 | U32 | widened |
//! | U64 | I64 | widened; a value of 2⁶³ or more is an error |
//! | F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ | F16 | widened |
//! | C64 | F32 | widened; the shape gains a last dimension of 2: real, imaginary |
//!
//! Widening keeps every value. [`Widening::Refuse`] in the [`LoadOptions`] makes it an error.
//!
//! A saved file loads as the same tensors, bit for bit. Parts and transposed views of F4 and F6
//! tensors cannot be saved: candle counts offsets in elements, and these do not fill bytes.
//!
//! # Quantised weights
//!
//! A quantised weight is stored as codes, which are numbers only together with scales in other
//! tensors. [`quantized`](safetensors_core::quantized) lists the schemes: block-scaled FP8, GPTQ,
//! AWQ, NF4, NVFP4 and others. Every load has the option [`LoadOptions::quantized`]:
//!
//! | [`QuantizedWeights`] | a load, a [`VarBuilder`](candle_nn::VarBuilder), a part, a variable |
//! |---|---|
//! | `Refuse`, the default | is an error that names the weight and its scheme |
//! | `Numbers` | gets the weight under its name, in the requested dtype, or as F32 if none is requested; scales are hidden |
//! | `Stored` | gets codes and scales unchanged, as from candle's own loaders |
//!
//! ```
//! use candle_core::{DType, Device};
//! use safetensors_candle::CheckpointBackend;
//! use safetensors_core::load::QuantizedWeights;
//! use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! // The codes of 1 and 2, with the scale 0.5.
//! let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
//! let scale = TensorView::from_slice(&[1, 1], &[0.5_f32])?;
//! save(&path, [("fc.weight", weight), ("fc.weight_scale_inv", scale)], &SaveOptions::new())?;
//!
//! let numbers = LoadOptions::new().quantized(QuantizedWeights::Numbers);
//! let backend = CheckpointBackend::new_with(Checkpoint::open(&path)?, &numbers)?;
//! let weight = backend.var_builder(DType::BF16, &Device::Cpu).get((1, 2), "fc.weight")?;
//! assert_eq!(weight.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[0.5, 1.0]]);
//!
//! // All at once.
//! let tensors = safetensors_candle::load_with(&path, &Device::Cpu, &numbers)?;
//! assert_eq!((tensors.len(), tensors["fc.weight"].dtype()), (1, DType::F32));
//!
//! let builder = safetensors_candle::var_builder(&path, DType::BF16, &Device::Cpu)?;
//! let error = builder.get((1, 2), "fc.weight").unwrap_err().to_string();
//! assert!(error.contains("stored as fp8") && error.contains("QuantizedWeights::Numbers"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In one line: `var_builder_from(Checkpoint::open(path)?.dequantized()?, dtype, &device)`. In the
//! same way, `merged([Adapter::open(adapter)?])` merges [LoRA adapters](safetensors_core::lora).
//!
//! Models of mixtures ask for single [experts](safetensors_core::experts).
//! [`LoadOptions::experts`] finds them in a file that stacks them in one tensor.
//!
//! candle computes with quantised weights only in the types of GGML. The module `gguf` reads these
//! as `QTensor`s. [`quantize::load`] makes them from the numbers of other schemes, which rounds
//! once more.
//!
//! [`LoadOptions::experts`]: safetensors_core::LoadOptions::experts
//! [`LoadOptions::quantized`]: safetensors_core::LoadOptions::quantized
//! [`QuantizedWeights`]: safetensors_core::load::QuantizedWeights
//!
//! # What is copied
//!
//! Loading reads each tensor into the memory that the candle tensor then owns. Another device adds
//! one copy. Saving writes contiguous tensors on the CPU from their memory, and copies others
//! through a bounded buffer.
//!
//! # Devices
//!
//! | device | [`load()`], [`load_with`] and [`load_from`] | main memory |
//! |---|---|---|
//! | CPU | read into the memory of the tensors | the tensors |
//! | CUDA, with the feature `cuda` | read into pinned memory, and copy from there at the same time | 32 MiB |
//! | Metal, with the feature `metal` | read 256 MiB of tensors at a time, and copy each | 256 MiB, or the largest tensor |
//!
//! Elements are converted on the CPU, before the copy, so the values equal a load to the CPU, bit
//! for bit. On a CUDA device the memory of all tensors is allocated first, so tensors that do not
//! fit are an error before anything is read. Every thread can use the tensors. Builders of models,
//! also [`tensor_parallel`], read each tensor into main memory first, and then copy it.
//!
//! The code for CUDA and Metal is type-checked, but has not run on such devices yet.
//!
//! # What this crate does not do
//!
//! It does not map files, and does not send tensors between ranks.
//!
//! [`migration`] has a replacement for each of candle's own loaders.
#![cfg_attr(docsrs, feature(doc_cfg))]
// With `cuda`, only `cuda.rs` allows the lints that the workspace denies.
#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]

#[cfg(feature = "cuda")]
mod cuda;
mod dtype;
mod error;
mod framework;
#[cfg(feature = "gguf")]
#[cfg_attr(docsrs, doc(cfg(feature = "gguf")))]
pub mod gguf;
mod load;
pub mod migration;
pub mod quantize;
mod save;
pub mod tensor_parallel;
pub mod train;
mod var_builder;
mod weights;

pub use dtype::{from_candle_dtype, to_candle_dtype};
pub use error::{Candle, IntoCandle, IntoCore};
pub use load::{ReadTensorExt, load, load_from, load_with};
// Items of the core that a program needs if it has only this crate as a dependency.
#[doc(no_inline)]
pub use safetensors_core::load::QuantizedWeights;
pub use safetensors_core::{
    self, Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, LazyTensor, Limits, LoadOptions,
    ReadAt, SaveOptions, ShardOptions, Widening,
};
pub use save::{save, save_sharded};
pub use tensor_parallel::{
    PartHint, TensorParallelBackend, TensorParallelVarBuilder, tensor_parallel_var_builder,
};
pub use var_builder::{CheckpointBackend, var_builder, var_builder_from};

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
