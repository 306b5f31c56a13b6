//! Tensors of formats other than safetensors, read and written as streams.
//!
//! | format | to read | to write |
//! |---|---|---|
//! | `.npy`, one array of NumPy | [`npy::Array`] | [`npy::write()`] |
//! | `.npz`, an archive of them | [`npz::Archive`] | [`npz::Writer`] |
//! | any of these, PyTorch, GGUF and burn | [`open`], [`TensorFile`] | GGUF: `gguf::Writer`, `gguf::Model`; burn: `burn::Writer` |
//! | Zarr, by references to safetensors files | | [`kerchunk::manifest`] |
//!
//! [`open`] makes a [`Checkpoint`](safetensors_core::Checkpoint) of a file of any format, or of a
//! directory of PyTorch's trainers, so that all of core works on it, without a copy of the file.
//! PyTorch, GGUF and burn need the features `pytorch`, `gguf` and `burn`. [`Format::Burn`] and
//! [`Format::Burnpack`] describe burn's files.
//!
//! `npy` and `npz` read and write a [`TensorSource`](safetensors_core::TensorSource), so core
//! saves, merges, casts or shards their arrays, and any tensor goes into them. Memory holds only a
//! few pieces.
//!
//! ```
//! use safetensors_core::{Checkpoint, Rewrite, SaveOptions, TensorBuf};
//! use safetensors_formats::npz;
//!
//! # let dir = tempfile::tempdir()?;
//! # let (path, output) = (dir.path().join("weights.npz"), dir.path().join("model.safetensors"));
//! # let mut writer = npz::Writer::new(std::fs::File::create(&path)?);
//! # writer.add("embed.weight", &TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0])?)?;
//! # writer.finish()?;
//! // weights.npz becomes model.safetensors, with new names.
//! let archive = npz::Archive::open(&path)?;
//! archive.check()?;
//! let mut rewrite = Rewrite::new();
//! for array in archive.arrays() {
//!     let array = array?;
//!     rewrite = rewrite.add(format!("model.{}", array.name()), array)?;
//! }
//! rewrite.save(&output, &SaveOptions::new())?;
//!
//! // And back.
//! let checkpoint = Checkpoint::open(&output)?;
//! let mut writer = npz::Writer::new(std::fs::File::create(&path)?);
//! for tensor in checkpoint.tensors() {
//!     writer.add(tensor.name(), &tensor)?;
//! }
//! writer.finish()?;
//! # assert!(npz::Archive::open(&path)?.names().eq(["model.embed.weight"]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Hostile files
//!
//! No file makes this crate panic, and no code in a file is run. Memory to open a file is in
//! proportion to its length, and bounded by [`Limits`]. A member of an archive is unpacked only to
//! its array's size. [`npz::Archive::check`] finds members that claim to be larger than possible.
//!
//! # Limits of this crate
//!
//! It converts no elements: [`safetensors_core::convert::Converted`] takes these sources. It reads
//! no arrays of objects.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// The features share modules, and none of them needs all of each.
#![cfg_attr(
    not(all(feature = "burn", feature = "gguf", feature = "pytorch")),
    allow(dead_code, unused_imports, reason = "what the features read uses it")
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking"))]

mod budget;
#[cfg(feature = "burn")]
#[cfg_attr(docsrs, doc(cfg(feature = "burn")))]
pub mod burn;
mod counted;
mod error;
mod format;
#[cfg(feature = "gguf")]
#[cfg_attr(docsrs, doc(cfg(feature = "gguf")))]
pub mod gguf;
mod input;
pub mod kerchunk;
mod limits;
pub mod npy;
pub mod npz;
mod opcodes;
mod open;
mod options;
#[cfg(any(feature = "burn", feature = "pytorch"))]
mod pairs;
mod pickled;
mod places;
mod polyglot;
#[cfg(feature = "pytorch")]
#[cfg_attr(docsrs, doc(cfg(feature = "pytorch")))]
pub mod pytorch;
mod tensor_file;
mod window;
mod zipped;

pub use error::{Error, ErrorKind, Result};
pub use format::Format;
pub use limits::Limits;
#[doc(hidden)]
pub use open::join;
pub use open::{open, open_files};
pub use options::Options;
pub use polyglot::check_polyglot;
pub use tensor_file::{Stored, TensorFile};

#[cfg(all(doctest, feature = "gguf", feature = "pytorch"))]
#[doc = include_str!("../README.md")]
mod readme {}
