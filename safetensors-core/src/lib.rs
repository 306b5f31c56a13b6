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

// The rooms, from the ground up: each imports only from those above its line.
mod dtype;
mod error;
#[cfg(feature = "std")]
mod parallel;
mod tensor;

pub mod convert;
mod header;
pub mod slice;

mod io;
pub mod tied;

#[cfg(feature = "std")]
mod load;

mod hash;

pub mod modelspec;
pub mod save;

#[cfg(feature = "std")]
mod checkpoint;

#[cfg(feature = "std")]
pub mod audit;
#[cfg(feature = "std")]
pub mod digest;
#[cfg(feature = "std")]
pub mod edit;
#[cfg(feature = "std")]
mod rewrite;

pub mod framework;

#[cfg(feature = "std")]
pub use checkpoint::{
    Access, Checkpoint, FilePattern, Located, MaxShardSize, SavedShards, ShardFile, ShardOptions,
    Split, save_sharded, split_into_shards,
};
pub use convert::{ConvertOptions, Converted, Overflow, Support, Widening};
pub use dtype::{Dtype, UnknownDtype};
#[cfg(feature = "std")]
pub use error::IndexProblem;
pub use error::{Error, ErrorKind, JsonProblem, NameList, Result};
pub use framework::Framework;
pub use header::{Header, Limits, Metadata, TensorInfo};
pub use io::SafeTensors;
#[cfg(feature = "std")]
pub use io::{FileSource, ReadAt, ReadRange};
#[cfg(feature = "std")]
pub use load::{
    LazySlice, LazyTensor, LoadOptions, LoadedDtype, Piece, Pieces, read_slices, read_tensors,
};
#[cfg(feature = "std")]
pub use memmap2::Mmap;
pub use modelspec::ModelSpec;
#[cfg(feature = "std")]
pub use parallel::{Progress, default_threads};
#[cfg(feature = "std")]
pub use rewrite::{Plan, Planned, Rewrite};
#[cfg(feature = "std")]
pub use save::{AtomicFile, StreamWriter, TensorWriter, save};
pub use save::{Order, SaveOptions, serialize};
pub use tensor::{Element, Sink, TensorBuf, TensorSource, TensorView, element, shape};
