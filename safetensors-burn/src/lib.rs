//! safetensors files to and from [burn].
//!
//! | to | use |
//! |---|---|
//! | save a module, or load one | [`CheckpointStore`] with `module.save_into` and `module.load_from` |
//! | load every tensor of a checkpoint as [`TensorData`](burn::tensor::TensorData) | [`load()`], [`load_with`] |
//! | load from a checkpoint that is open: with limits, mapped, or in memory | [`framework::load::<Burn>`](safetensors_core::framework::load) |
//! | load without a copy | [`share_checkpoint`], [`share_tensor`]; [`share`] from a file in memory |
//! | save named `TensorData` to a file, or in shards | [`save()`], [`save_sharded`] |
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
//! | in the file | in burn |
//! |---|---|
//! | F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 | the same |
//! | BOOL | `Bool(Native)` |
//! | F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4 | F16, which holds each value exactly |
//! | F8_E8M0 | F32, which holds each value exactly |
//! | C64 | F32 with a last dimension of 2: real part, imaginary part |
//!
//! [`Widening::Refuse`](safetensors_core::Widening::Refuse) makes the widened ones errors. On the way
//! out every boolean is BOOL, however the backend stores it, and `Flex32` is F32, which is how burn
//! stores it. Quantized tensors (`QFloat`) have no dtype in the format: saving one is an error.
//!
//! # What is not here
//!
//! Parameter ids are not saved: a loaded module keeps the ids it was made with, as with every
//! format that other libraries read. Optimizer state, which burn finds by those ids, is therefore
//! not restored by a [`CheckpointStore`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod dtype;
mod error;
mod framework;
mod load;
mod save;
mod share;
mod store;

pub use burn_store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, ChainAdapter, FloatCastAdapter,
    HalfPrecisionAdapter, IdentityAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    ModuleStore, PathFilter, PyTorchToBurnAdapter, bridge, burn_pack,
};
pub use error::StoreError;
pub use framework::Burn;
pub use load::{load, load_with};
pub use save::{save, save_sharded};
pub use share::{share, share_checkpoint, share_tensor};
pub use store::CheckpointStore;

/// The README, whose example is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
