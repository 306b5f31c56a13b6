//! Reads and writes [`ndarray`] arrays as safetensors files, many in one file as in `.npz`.
//!
//! ```
//! use ndarray::{Ix2, array, s};
//! use safetensors_ndarray::{Reader, Writer};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("wind.safetensors");
//! let u = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
//!
//! let w = Writer::create(&path)?;
//! w.add("u", &u)?;
//! w.add("v", &u.t())?;
//! w.attribute("u", "units", "m/s")?;
//! w.finish()?;
//!
//! let r = Reader::open(&path)?;
//! assert_eq!(r.read::<f64, Ix2>("u")?, u);
//! assert_eq!(r.slice::<f64, _>("v", s![1.., ..;-1])?, array![[5.0, 2.0], [6.0, 3.0]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Arrays in files
//!
//! | to | use | the data is |
//! |---|---|---|
//! | write arrays of any type, dimension and layout | [`Writer::add`] | not copied whole |
//! | write an array that grows along an axis, step by step | [`Writer::grow`] | buffered, 256 KiB at most |
//! | go on with a file, or after a kill | [`Writer::resume`] | all written again, at the end |
//! | keep the steps that a run has written when it is killed | [`Writer::sync`], [`Writer::sync_every`] | written once more |
//! | read an array | [`Reader::read`] | read, then moved |
//! | read an array as another element type | [`Reader::read_as`] | converted while it is read |
//! | read a part of an array, by `s![]` | [`Reader::slice`] | only that part is read |
//! | read some rows of a table, by their numbers | [`Reader::rows`] | only these rows are read |
//! | read into an array that is there already | [`Reader::read_into`], [`Reader::slice_into`] | read to its place |
//! | borrow an array from a file in memory, or mapped | [`Reader::view`] | borrowed |
//! | read quantised weights as numbers, or as stored | [`Reader::quantized`] | computed while it is read |
//! | give arrays units and names, or the file a title | [`Writer::attribute`], [`Writer::metadata`], and the same of [`Reader`] | |
//! | name axes, and read a part by labels along them | [`Writer::dimensions`], [`Reader::select`] | only that part is read |
//!
//! # NumPy's files
//!
//! With the feature `npz`, the module `npz` reads and writes `.npy` and `.npz`, and turns archives
//! into safetensors files and back.
//!
//! # Structs of arrays
//!
//! With the feature `derive`, `#[derive(NamedArrays)]` implements the trait `NamedArrays`, which
//! saves and loads a struct of arrays.
//!
//! # Checkpoints
//!
//! The same files hold the weights of models:
//!
//! | to | use | the data is |
//! |---|---|---|
//! | load a file, or several shards | [`load`], [`load_with`] | read in parallel, then moved |
//! | load from an open checkpoint, for example with limits, mapped or in memory | [`framework::load::<Ndarray>`](safetensors_core::framework::load) | read and moved as above |
//! | read one tensor of a checkpoint as a typed array | [`ReadArrayExt`] | read, converted if asked, moved |
//! | look at a tensor without copying it | [`ViewArrayExt`] | borrowed |
//! | save a map of arrays to a file, or in shards | [`save`], [`save_sharded`] | not copied whole |
//! | save arrays at once with core's options | [`array_source`] with [`safetensors_core::save()`] | not copied whole |
//!
//! A [`DynArray`] is a tensor with a dtype that is known only at run time. Every dtype of the
//! format is held exactly. No array can index the sub-byte dtypes (F4, F6_E2M3, F6_E3M2): such a
//! tensor is a [`Packed`].
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
//! # Quantised weights
//!
//! [`load`], [`Reader`] and structs of arrays refuse a [quantised
//! weight](safetensors_core::quantized), unless [`LoadOptions::quantized`] or [`Reader::quantized`]
//! asks for its numbers or codes. [`ReadArrayExt`] and [`ViewArrayExt`] return codes, if the caller
//! names their type.
//!
//! # Coming from ndarray-npy
//!
//! | ndarray-npy | here |
//! |---|---|
//! | `NpzWriter::new(File::create(path)?)` | [`Writer::create(path)`](Writer::create) |
//! | `npz.add_array("u", &u)` | [`w.add("u", &u)`](Writer::add) |
//! | `npz.finish()`, or drop | [`w.finish()`](Writer::finish); a dropped writer leaves the old file |
//! | `NpzReader::new(File::open(path)?)` | [`Reader::open(path)`](Reader::open) |
//! | `npz.by_name::<OwnedRepr<f64>, Ix2>("u")` | [`r.read::<f64, Ix2>("u")`](Reader::read), by `&self` |
//! | `npz.names()` | [`r.names()`](Reader::names), [`r.with_prefix("grid/")`](Reader::with_prefix) |
//! | `npz.by_index(i)` | [`r.arrays().nth(i)`](Reader::arrays) |
//! | `read_npy(path)`, `write_npy(path, &u)` | a file with one array |
//! | `ArrayView::view_npy(&map)` | [`r.view::<f64, Ix2>("u")`](Reader::view) |
//! | `ReadNpyError::WrongDescriptor` | [`WrongDtype`](safetensors_core::ErrorKind::WrongDtype) |
//! | `ReadNpyError::WrongNdim` | [`WrongNdim`] |
//! | `ViewNpyError::MisalignedData` | [`Misaligned`](safetensors_core::ErrorKind::Misaligned) |
//! | `ReadNpzError::Zip(FileNotFound)` | [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound), with the names that are [similar](safetensors_core::Error::similar) |
//!
//! [`ArrayElement`] shows how to store `Complex<f64>`, which safetensors lacks. Files have C order,
//! so an array in Fortran order comes back in C order with the same elements.
//!
//! # Coming from ndarray-safetensors
//!
//! | ndarray-safetensors | here |
//! |---|---|
//! | `safetensors::serialize([("u", TensorViewWithDataBuffer::new(&u))], None)` | [`serialize`](safetensors_core::serialize)`([("u", `[`array_source(&u)`](array_source)`)], …)`, without a copy of `u` |
//! | `safetensors::serialize_to_file(…)` | [`Writer`], or [`safetensors_core::save()`] |
//! | `SafeTensors::deserialize(&bytes)` | [`Reader::from_bytes(&bytes)`](Reader::from_bytes) |
//! | `parse_tensor_view_data::<f32>(&view)` | [`r.read::<f32, IxDyn>("u")`](Reader::read), or [`r.view`](Reader::view) without a copy |
//! | `parse_tensors::<f32>(&tensors)` | [`r.names()`](Reader::names) and [`r.read`](Reader::read) |
//! | `DeserializationError` | [`WrongDtype`](safetensors_core::ErrorKind::WrongDtype), naming the file and the array |
//!
//! # What this crate does not do
//!
//! It converts elements only on request: reading BF16 as `f32` is an error. Call
//! [`Reader::read_as`] or [`read_array_as`](ReadArrayExt::read_array_as), or set
//! [`LoadOptions::floats_as`].
//!
//! It makes no array that owns a mapped file, because ndarray accepts no owner from outside. Keep
//! the [`Reader`] alive and borrow views of it.
//!
//! It does not compress, so that files can be mapped and read in parts.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod array;
mod bytes;
mod dtype;
mod error;
#[cfg(feature = "derive")]
pub mod fields;
mod framework;
mod labels;
mod load;
#[cfg(feature = "npz")]
pub mod npz;
mod packed;
mod reader;
mod save;
mod slice;
mod strided;
mod value;
mod view;
mod writer;

pub use array::{ArrayElement, ArraySource, DynArray, array_source};
pub use bytes::{FileBytes, InMemory};
pub use error::{Ndarray, WrongNdim};
#[cfg(feature = "derive")]
pub use fields::NamedArrays;
pub use labels::Selection;
pub use load::{ReadArrayExt, load, load_with};
pub use packed::Packed;
pub use reader::Reader;
// Items of the core that a program needs if it has only this crate as a dependency.
#[doc(no_inline)]
pub use safetensors_core::load::QuantizedWeights;
pub use safetensors_core::{
    self, Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, LazyTensor, Limits, LoadOptions,
    ReadAt, SaveOptions, ShardOptions, Widening,
};
#[cfg(feature = "derive")]
pub use safetensors_derive::NamedArrays;
pub use save::{save, save_sharded};
pub use value::MetadataValue;
pub use view::ViewArrayExt;
pub use writer::{ArrayAppender, Writer};

/// Tests the examples of the README.
#[cfg(all(doctest, feature = "derive"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// Tests the examples of the derive macro, which does not depend on this crate.
#[cfg(all(doctest, feature = "derive"))]
#[doc = include_str!("../derive/README.md")]
#[doc = include_str!("../derive/src/derive.md")]
mod derive {}
