//! The safetensors format: dtypes, a strict header parser, zero-copy views, a parallel loader and a
//! safe writer.
//!
//! This crate knows no tensor library. The adapters (`safetensors-ndarray`, `safetensors-candle`,
//! `safetensors-burn`) implement its [`Framework`] trait; the facade `safetensors-bridge`
//! re-exports everything.
//!
//! | to | use |
//! |---|---|
//! | open a file, a directory or an index of shards | [`Checkpoint`] |
//! | parse a file that is in memory, or mapped | [`SafeTensors`] |
//! | look at a tensor without copying it | [`TensorView`] |
//! | own a tensor | [`TensorBuf`] |
//! | change the dtype | [`TensorBuf::convert`], [`LazyTensor::read_as`], [`LoadOptions::floats_as`], [`Converted`]; see [`convert`] |
//! | save | [`save()`], [`serialize`], [`SaveOptions`] |
//! | write tensors bit by bit, from several threads | [`StreamWriter`] |
//! | change the metadata, the names or the tensors of a file | [`edit::Edit`] |
//! | save a checkpoint of several files | [`save_sharded`], [`ShardOptions`] |
//! | make a checkpoint of others, streaming: merge, select, rename, cast | [`Rewrite`] |
//! | write a file of any kind whole or not at all | [`AtomicFile`] |
//! | save tensors that share storage once | [`SaveOptions::tied`], [`tied::Tied`] |
//! | record digests of tensors, and find data that has changed | [`digest`], [`SaveOptions::digests`] |
//! | find what is odd about a file that is sound | [`audit`], [`Checkpoint::audit`] |
//! | say what model a file holds | [`ModelSpec`] |
//! | support another tensor library | [`Framework`], [`TensorSource`] |
//!
//! Nothing here panics on what a file holds: every malformed file is an [`Error`] that names the
//! file, the tensor, what was expected and what was found. A dtype is never changed unless asked
//! for.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

extern crate alloc;

mod archive;
#[cfg(feature = "std")]
pub mod audit;
mod buf;
#[cfg(feature = "std")]
mod checkpoint;
pub mod convert;
#[cfg(feature = "std")]
pub mod digest;
mod dtype;
#[cfg(feature = "std")]
pub mod edit;
pub mod element;
mod error;
pub mod framework;
mod header;
mod hex;
#[cfg(feature = "std")]
mod hugepage;
#[cfg(feature = "std")]
mod lazy;
#[cfg(feature = "std")]
mod loader;
#[cfg(feature = "std")]
mod mmap;
pub mod modelspec;
mod names;
#[cfg(feature = "std")]
mod parallel;
#[cfg(feature = "std")]
mod pieces;
#[cfg(feature = "std")]
mod progress;
#[cfg(feature = "std")]
mod rewrite;
pub mod save;
mod sha256;
pub mod shape;
pub mod slice;
#[cfg(feature = "std")]
mod source;
pub mod tied;
mod view;

pub use archive::SafeTensors;
pub use buf::TensorBuf;
#[cfg(feature = "std")]
pub use checkpoint::{
    Checkpoint, FilePattern, Located, MaxShardSize, SavedShards, ShardFile, ShardOptions, Split,
    save_sharded, split_into_shards,
};
pub use convert::{ConvertOptions, Converted, Overflow};
pub use dtype::{Dtype, UnknownDtype};
pub use element::Element;
#[cfg(feature = "std")]
pub use error::IndexProblem;
pub use error::{Error, ErrorKind, JsonProblem, NameList, Result};
pub use framework::{Framework, Support, Widening};
pub use header::{Header, Limits, Metadata, TensorInfo};
#[cfg(feature = "std")]
pub use lazy::LazyTensor;
#[cfg(feature = "std")]
pub use loader::{LoadOptions, read_slices, read_tensors};
#[cfg(feature = "std")]
pub use memmap2::Mmap;
#[cfg(feature = "std")]
pub use mmap::Access;
pub use modelspec::ModelSpec;
#[cfg(feature = "std")]
pub use parallel::default_threads;
#[cfg(feature = "std")]
pub use pieces::{Piece, Pieces};
#[cfg(feature = "std")]
pub use progress::Progress;
#[cfg(feature = "std")]
pub use rewrite::{Plan, Planned, Rewrite};
#[cfg(feature = "std")]
pub use save::{AtomicFile, StreamWriter, TensorWriter, save};
pub use save::{Order, SaveOptions, Sink, TensorSource, serialize};
#[cfg(feature = "std")]
pub use source::{FileSource, ReadAt, ReadRange};
pub use view::TensorView;

/// Steps that fail on purpose, for the fuzz targets.
#[cfg(feature = "__failpoints")]
#[doc(hidden)]
pub mod failpoint {
    pub use crate::save::failpoint::{crash_at, fail_at};
}
