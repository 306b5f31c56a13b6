//! Loads safetensors files into [burn] and saves burn's tensors to such files.
//!
//! | to | use |
//! |---|---|
//! | save or load a module | [`CheckpointStore`] with `module.save_into`, `module.load_from` |
//! | load models of PyTorch, or save modules for PyTorch | [`CheckpointStore::pytorch`], see the module [`pytorch`] |
//! | load every tensor of a checkpoint as [`TensorData`](burn::tensor::TensorData) | [`load()`], [`load_with`] |
//! | load from an open checkpoint, for example with limits, mapped or in memory | [`framework::load::<Burn>`](safetensors_core::framework::load) |
//! | load without a copy | [`share_checkpoint`], [`share_tensor`] |
//! | save named `TensorData` to a file, or in shards | [`save()`], [`save_sharded`] |
//! | save and resume burn's training loop: model, optimizer, scheduler | `train`, with the feature `train` |
//! | write code that is generic over tensor libraries | [`Burn`], a [`Framework`](safetensors_core::framework::Framework) |
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use safetensors_burn::{CheckpointStore, ModuleSnapshot};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let device = Device::default();
//!
//! let trained: Linear = LinearConfig::new(4, 2).init(&device);
//! trained.save_into(&mut CheckpointStore::from_file(&path))?;
//!
//! let mut fresh: Linear = LinearConfig::new(4, 2).init(&device);
//! let result = fresh.load_from(&mut CheckpointStore::from_file(&path))?;
//! assert_eq!(result.applied.len(), 2);
//! assert_eq!(fresh.weight.to_data(), trained.weight.to_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Dtypes
//!
//! | in the file | in burn | |
//! |---|---|---|
//! | F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8 | the same | |
//! | BOOL | the same | `Bool(Native)` |
//! | F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F6_E2M3, F6_E3M2, F4 | F16 | widened |
//! | F8_E8M0 | F32 | widened |
//! | C64 | F32 | widened; the shape gains a last dimension of 2: real, imaginary |
//!
//! Widening keeps every value. With [`Widening::Refuse`] it is an error.
//!
//! A [quantised weight](safetensors_core::quantized) is an error unless [`LoadOptions::quantized`]
//! asks for its numbers or codes. [`share_tensor`] and [`share_checkpoint`] refuse it.
//!
//! [`LoadOptions::experts`] is for a file that has the experts of a mixture in another layout than
//! the module.
//!
//! Every boolean is saved as BOOL, and `Flex32` as F32. Saving a `QFloat` is an error, because the
//! format has no dtype for it.
//!
//! Coming from burn-store's `SafetensorsStore`? See [`migration`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod dtype;
mod error;
mod framework;
mod load;
mod location;
pub mod migration;
pub mod pytorch;
#[cfg(feature = "train")]
mod samples;
mod save;
mod share;
mod store;
#[cfg(feature = "train")]
pub mod train;

pub use burn_store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, ChainAdapter, FloatCastAdapter,
    HalfPrecisionAdapter, IdentityAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    ModuleStore, PathFilter, PyTorchToBurnAdapter, bridge, burn_pack,
};
pub use error::{Burn, StoreError};
pub use load::{load, load_with};
#[cfg(feature = "train")]
pub use samples::SampleDataset;
// Items of the core that a program needs if it has only this crate as a dependency.
#[doc(no_inline)]
pub use safetensors_core::checkpoint::MaxShardSize;
#[doc(no_inline)]
pub use safetensors_core::load::QuantizedWeights;
pub use safetensors_core::{
    self, Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, LazyTensor, Limits, LoadOptions,
    ReadAt, SaveOptions, ShardOptions, Widening,
};
pub use save::{save, save_sharded};
pub use share::{share_checkpoint, share_tensor};
pub use store::CheckpointStore;

/// Tests the examples of the README.
#[cfg(all(doctest, feature = "train"))]
#[doc = include_str!("../README.md")]
mod readme {}
