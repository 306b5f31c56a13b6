//! Loads safetensors files as [`ndarray`] arrays and saves arrays to such files.
//!
//! | to | use | the data is |
//! |---|---|---|
//! | load a file, or several shards | [`load`], [`load_with`] | read in parallel, then moved |
//! | load from an open checkpoint, for example with limits, mapped or in memory | [`framework::load::<Ndarray>`](safetensors_core::framework::load) | read and moved as above |
//! | read one tensor as a typed array | [`ReadArrayExt`] | read, converted if asked, moved |
//! | look at a tensor without copying it | [`ViewArrayExt`] | borrowed |
//! | save a map of arrays to a file, or in shards | [`save`], [`save_sharded`] | not copied whole |
//! | save arrays and views of any type, dimension and layout | [`array_source`] with [`safetensors_core::save()`] | not copied whole |
//!
//! A [`DynArray`] is a tensor whose dtype is known only at run time. This crate holds every dtype
//! of the format exactly, so it never widens. The elements of the sub-byte dtypes (F4, F6_E2M3,
//! F6_E3M2) share bytes, and no array can index parts of bytes. Such a tensor is a [`Packed`],
//! which keeps the bytes as they are in the file.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use ndarray::{Ix2, array};
//! use safetensors_core::{Checkpoint, SaveOptions};
//! use safetensors_ndarray::{DynArray, ReadArrayExt, load, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let weight = array![[1.0_f32, 2.0], [3.0, 4.0]];
//! let tensors = BTreeMap::from([
//!     ("weight", DynArray::from(weight.clone())),
//!     ("steps", DynArray::from(array![7_i64])),
//! ]);
//! save(&path, &tensors, &SaveOptions::new())?;
//!
//! // Loads all tensors.
//! let loaded = load(&path)?;
//! assert_eq!(loaded["weight"], tensors["weight"]);
//!
//! // Reads one tensor as the element type and the dimension that the program expects.
//! let checkpoint = Checkpoint::open(&path)?;
//! assert_eq!(checkpoint.tensor("weight")?.read_array::<f32, Ix2>()?, weight);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What this crate does not do
//!
//! It converts elements only on request. Reading BF16 as `f32` is an error; call
//! [`read_array_as`](ReadArrayExt::read_array_as) or set
//! [`LoadOptions::floats_as`](safetensors_core::LoadOptions::floats_as) to convert.
//!
//! It makes no array that owns a mapped file, because ndarray accepts no owner from outside. Keep
//! the mapping alive and borrow views of it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod array;
mod bytes;
mod dtype;
mod element;
mod error;
mod framework;
mod load;
mod packed;
mod reader;
mod save;
mod slice;
mod strided;
mod view;
mod writer;

pub use array::DynArray;
pub use bytes::FileBytes;
pub use element::ArrayElement;
pub use error::WrongNdim;
pub use framework::Ndarray;
pub use load::{ReadArrayExt, load, load_with};
pub use packed::Packed;
pub use reader::Reader;
pub use safetensors_core::save::synced_directory;
pub use save::{ArraySource, array_source, save, save_sharded};
pub use slice::{ArraySlice, SliceArrayExt};
pub use view::ViewArrayExt;
pub use writer::{ArrayAppender, Writer, recover};

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
