//! safetensors files to and from [`ndarray`] arrays.
//!
//! | to | use | the data is |
//! |---|---|---|
//! | load a file, or a checkpoint of shards | [`load`], [`load_with`] | read in parallel, then moved into the arrays |
//! | load from a checkpoint that is open: with limits, mapped, or in memory | [`framework::load::<Ndarray>`](safetensors_core::framework::load) | read and moved as above |
//! | read one tensor as an array of a known type and dimension | [`ReadArrayExt`] | read, then moved; converted while it is read, if asked |
//! | look at a tensor without copying it | [`ViewArrayExt`] | borrowed |
//! | save a map of arrays to a file, or in shards | [`save`], [`save_sharded`] | written from where it lies |
//! | save arrays and views of any type, dimension and layout | [`array_source`] with [`safetensors_core::save()`] | written from where it lies |
//!
//! A tensor whose dtype is known at run time only is a [`DynArray`]. All dtypes of the format are
//! held exactly, so nothing is ever widened here. The elements of the sub-byte dtypes (F4, F6_E2M3,
//! F6_E3M2) share bytes, which no array can index: they stay as they are, as [`Packed`].
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
//! // Everything at once.
//! let loaded = load(&path)?;
//! assert_eq!(loaded["weight"], tensors["weight"]);
//!
//! // One tensor, as the type and the dimension that the program expects.
//! let checkpoint = Checkpoint::open(&path)?;
//! assert_eq!(checkpoint.tensor("weight")?.read_array::<f32, Ix2>()?, weight);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What this crate does not do
//!
//! It converts no elements unless asked to: reading BF16 as `f32` is an error, and
//! [`read_array_as`](ReadArrayExt::read_array_as) or
//! [`LoadOptions::floats_as`](safetensors_core::LoadOptions::floats_as) says what is meant. An
//! array that owns a mapped file does not exist, because ndarray's owners are its own: keep the
//! mapping and lend views of it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod array;
mod dtype;
mod element;
mod error;
mod framework;
mod load;
mod packed;
mod save;
mod strided;
mod view;

pub use array::DynArray;
pub use element::ArrayElement;
pub use error::WrongNdim;
pub use framework::Ndarray;
pub use load::{ReadArrayExt, load, load_with};
pub use packed::Packed;
pub use save::{ArraySource, array_source, save, save_sharded};
pub use view::ViewArrayExt;

/// The README, whose example is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
