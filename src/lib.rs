//! Move tensors between safetensors files and the library they are used in: ndarray, candle or
//! burn.
//!
//! This crate is a facade. It re-exports all of `safetensors-core`, and each adapter behind a
//! feature.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `ndarray` (default) | [`ndarray`] | array views and owned arrays |
//! | `candle` | `candle` | candle tensors, and a `VarBuilder` |
//! | `burn` | `burn` | burn tensor data, and a `ModuleStore` |
//! | `derive` | [`ndarray`] | `#[derive(SafeTensors)]` for structs of arrays, with `#[safetensors(crate = "safetensors_bridge::ndarray")]` |
//! | `full` | | all of these |
//! | `npz` | [`ndarray`] | NumPy's `.npy` and `.npz` as arrays |
//! | `burn-train` | `burn::train` | checkpoints of burn's training loop |
//! | `hub` | `hub` | downloads from the Hugging Face Hub; not in `full` |
//! | `remote` | `hub`, `remote` | checkpoints in buckets, on web servers and on the Hub, read by ranges; not in `full` |
//! | `cuda`, `metal` | | `candle`, with candle's GPU support |
//!
//! What a user of the format needs is here, at the root. The rest is in the module of its subject:
//!
//! | module | what for |
//! |---|---|
//! | [`checkpoint`] | checkpoints of several files: how they are found, divided and named |
//! | [`load`], [`slice`](mod@slice) | many tensors, or parts of them, read at once; which parts |
//! | [`save`](mod@save), [`tied`] | writing piece by piece, or any file whole or not at all; tensors that share storage |
//! | [`ranks`], [`glob`] | which process of a job this is, what it holds of a model, and how all of them save; patterns of names |
//! | [`rewrite`], [`edit`] | what a [`Rewrite`] will write; a file that exists, changed |
//! | [`convert`], [`element`], [`shape`] | dtypes made into others; the Rust types of elements; sizes |
//! | [`digest`], [`audit`], [`modelspec`] | data that has changed; what is odd about a file; what model it holds |
//! | [`header`], [`io`], [`error`] | a file's header; where bytes come from; the parts of errors |
//! | [`framework`] | for adapters of other tensor libraries, and tools |
//!
//! Start with [`Checkpoint`] to open a file, a directory or an index of shards, with
//! [`SafeTensors`] for a file that is in memory, or with the `load` and `save` of an adapter.
//!
//! ```
//! use safetensors_bridge::{Checkpoint, SaveOptions, TensorView, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! save(
//!     &path,
//!     [("bias", TensorView::from_slice(&[2], &[0.5_f32, 1.5])?)],
//!     &SaveOptions::new(),
//! )?;
//!
//! let bias = Checkpoint::open(&path)?.tensor("bias")?.read()?;
//! assert_eq!(bias.into_vec::<f32>()?, [0.5, 1.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "burn")]
pub use safetensors_burn as burn;
#[cfg(feature = "candle")]
pub use safetensors_candle as candle;
pub use safetensors_core::*;
#[cfg(any(feature = "hub", feature = "remote"))]
pub use safetensors_hub as hub;
#[cfg(feature = "remote")]
pub use safetensors_hub::remote;
#[cfg(feature = "ndarray")]
pub use safetensors_ndarray as ndarray;

/// The README, whose examples are tested.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
mod readme {}
