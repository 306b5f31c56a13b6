//! The safetensors format: dtypes, strict parser, zero-copy views, parallel loader, safe writer.
//!
//! This crate knows no tensor library. Adapters (`safetensors-ndarray`, `safetensors-candle`,
//! `safetensors-burn`) implement its [`Framework`](framework::Framework) trait; the facade
//! `safetensors-bridge` re-exports everything.
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let bias = TensorView::from_slice(&[2], &[0.5_f32, 1.5])?;
//! save(&path, [("bias", bias)], &SaveOptions::new())?;
//!
//! let bias = Checkpoint::open(&path)?.tensor("bias")?.read()?;
//! assert_eq!(bias.into_vec::<f32>()?, [0.5, 1.5]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | open a file, a directory or an index of shards | [`Checkpoint`] |
//! | parse a file in memory | [`SafeTensors`] |
//! | map files | [`Checkpoint::mmap`] (`unsafe`: the files must not change) |
//! | borrow a tensor | [`TensorView`] |
//! | own a tensor | [`TensorBuf`] |
//! | read tensors, or parts of them, in parallel | [`load::read_tensors`], [`load::read_slices`] |
//! | read rows of a table | [`LazyTensor::rows`] |
//! | read quantised weights as numbers | [`LoadOptions::quantized`], [`Checkpoint::dequantized`]; see [`quantized`] |
//! | see stacks, slices or transposes of tensors as tensors | [`Checkpoint::arranged`] |
//! | merge LoRA adapters into the weights | [`Checkpoint::merged`]; see [`lora`] |
//! | split or stack the experts of a mixture | [`Checkpoint::experts`], [`LoadOptions::experts`]; see [`experts`] |
//! | read the state of a PyTorch optimizer | [`optimizer`] |
//! | change the dtype | [`TensorBuf::convert`], [`LoadOptions::all_as`], [`LoadOptions::floats_as`]; see [`convert`] |
//! | save | [`save()`], [`serialize`], [`SaveOptions`] |
//! | write tensors piece by piece | [`save::StreamWriter`] |
//! | change the metadata, names or tensors of a file | [`edit::Edit`] |
//! | save a checkpoint of several files | [`save_sharded`], [`ShardOptions`] |
//! | make a checkpoint from others: merge, select, rename, convert | [`Rewrite`] |
//! | load and save a model in several processes | [`ranks`] |
//! | write any file atomically | [`save::AtomicFile`] |
//! | save shared storage once | [`SaveOptions::tied`], [`tied::Tied`] |
//! | find data that has changed | [`digest`], [`SaveOptions::digests`] |
//! | find oddities that break no rule | [`audit`], [`Checkpoint::audit`] |
//! | read from memory, a network or another store | [`Checkpoint::open_in`] with a [`Store`](checkpoint::store::Store); one file: [`ReadAt`], [`SafeTensors::from_source`] |
//! | read without blocking: in tokio, smol or a browser | [`Checkpoint::open_async`], [`AsyncStore`](checkpoint::store::AsyncStore) |
//! | support another tensor library | [`framework`], [`TensorSource`] |
//!
//! No content of a file causes a panic. A malformed file is an [`Error`] that names the file, the
//! tensor, the expected and the found value. A dtype changes only on request.
//!
//! # Features
//!
//! All but the last are on by default. The adapters need `std` alone.
//!
//! | feature | adds |
//! |---|---|
//! | `std` | files and threads; without it the crate needs only `alloc` |
//! | `sha256` | [`digest::hash_files`], and SHA-256 in [`digest::verify`] and [`Edit::record_digests`](edit::Edit::record_digests) |
//! | `tracing` (off by default) | [spans](framework::Span) of opening, reading, converting and writing |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(
    not(feature = "std"),
    allow(dead_code, unused_imports, reason = "much of it is for files alone")
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

extern crate alloc;

// The parts, from the lowest to the highest. A part imports only from lower ones.

mod format;

#[cfg(feature = "std")]
mod weights;

mod file;

#[cfg(feature = "std")]
pub mod checkpoint;

#[cfg(feature = "std")]
pub mod ranks;

mod model;

pub mod framework;

#[cfg(feature = "std")]
#[doc(inline)]
pub use file::load;
#[doc(inline)]
pub use file::{io, save};
#[doc(inline)]
pub use format::{convert, error, header, slice, tied};
#[cfg(feature = "std")]
#[doc(inline)]
pub use format::{glob, python_json};
#[doc(inline)]
pub use model::digest;
#[cfg(feature = "std")]
#[doc(inline)]
pub use model::{audit, edit, experts, lora, optimizer, quantized, rewrite};

#[cfg(feature = "std")]
#[doc(inline)]
pub use checkpoint::{Checkpoint, ShardOptions, save_sharded};
#[doc(inline)]
pub use convert::{ConvertOptions, Widening};
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
pub use format::dtype::Dtype;
#[cfg(feature = "std")]
pub use format::parallel::Progress;
#[cfg(feature = "std")]
#[doc(hidden)]
pub use format::parallel::lock;
pub use format::tensor::{TensorBuf, TensorView, element, shape};
#[doc(inline)]
pub use header::{Limits, Metadata};
#[cfg(feature = "std")]
#[doc(inline)]
pub use io::ReadAt;
#[doc(inline)]
pub use io::SafeTensors;
#[cfg(feature = "std")]
#[doc(inline)]
pub use load::{LazyTensor, LoadOptions};
#[cfg(feature = "std")]
#[doc(inline)]
pub use rewrite::Rewrite;
#[cfg(feature = "std")]
#[doc(inline)]
pub use save::save;
#[doc(inline)]
pub use save::{SaveOptions, TensorSource, serialize};

/// For the fuzz targets: steps that fail on purpose, and slices of shapes without bytes.
#[cfg(feature = "__failpoints")]
#[doc(hidden)]
pub mod failpoint {
    use core::ops::Range;

    pub use crate::file::io::failpoint::{crash_at, fail_at};

    /// The shape of a slice, its number of bytes, and its first 2¹⁵ runs of bytes.
    #[doc(hidden)]
    pub type Selected = (Vec<usize>, u64, Vec<Range<u64>>);

    #[doc(hidden)]
    pub fn select(
        dtype: crate::Dtype,
        shape: &[usize],
        indices: &[crate::format::slice::Index],
    ) -> Result<Selected, crate::ErrorKind> {
        let selection = crate::format::slice::Selection::new(dtype, shape, indices)?;
        let runs = selection.runs().take(1 << 15).collect();
        Ok((selection.shape().to_vec(), selection.byte_len(), runs))
    }
}

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
mod readme {}
