//! GGUF: the files of llama.cpp and other users of ggml.
//!
//! [`TensorFile`] opens one. Plain types are exact: `F32`, `F16`, `BF16`, `F64` and integers.
//! Quantised tensors are listed with their [types](Type).
//! [`Options::dequantize`](crate::Options::dequantize) reads them as the F32 of the reference, the
//! Python package `gguf`; [`Options::blocks`](crate::Options::blocks) reads their bytes. Otherwise
//! reading one is [`ErrorKind::Quantised`].
//!
//! | dequantised | types |
//! |---|---|
//! | blocks of 32 and more | `Q1_0` `Q2_0` `Q4_0` `Q4_1` `Q5_0` `Q5_1` `Q8_0` `MXFP4` `NVFP4` `IQ4_NL` |
//! | K-quants | `Q2_K` `Q3_K` `Q4_K` `Q5_K` `Q6_K` |
//! | rows of tables | `IQ1_S` `IQ1_M` `IQ2_XXS` `IQ2_XS` `IQ2_S` `IQ3_XXS` `IQ3_S` |
//! | others in blocks of 256 | `TQ1_0` `TQ2_0` `IQ4_XS` |
//!
//! Other types are [`ErrorKind::NoDequantizer`]. An unknown type is listed by its number, with the
//! bytes up to the next tensor.
//!
//! A module can have tensors next to its quantised weight `X.weight`:
//!
//! | tensor | with [`Options::dequantize`](crate::Options::dequantize) |
//! |---|---|
//! | `X.bias` | read |
//! | `X.scale`, F32: one number, or one for each expert | multiplies the numbers of the weight, and is not listed |
//! | `X.input_scale` | not listed: it is for activations |
//! | `X.` and anything else | read; the weight is [`ErrorKind::BadCompanion`] |
//!
//! ComfyUI-GGUF stores some tensors in rows of 256 numbers, with the shape in
//! `comfy.gguf.orig_shape.NAME`. They have this shape, except as blocks.
//!
//! The outermost dimension is first, unlike in GGUF. Keys become metadata: texts, numbers,
//! booleans, and arrays of at most 64 values, nested ones included, as JSON. Longer arrays, such as
//! tokens, are skipped. Arrays nested over 4 deep are an error.
//!
//! ```
//! use safetensors_core::{Dtype, LoadOptions};
//! use safetensors_formats::Options;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf/quantised.gguf");
//! let checkpoint = safetensors_formats::open(path, &Options::new().dequantize(true))?;
//! assert_eq!(checkpoint.metadata()["general.architecture"], "llama");
//! let stored = checkpoint.files()[0].safetensors().source().stored("of.Q4_K").unwrap();
//! assert_eq!((stored.type_name.as_str(), stored.byte_len), ("Q4_K", 144));
//!
//! let weight = checkpoint.tensor("of.Q4_K")?;
//! assert_eq!((weight.dtype(), weight.shape()), (Dtype::F32, &[1, 256][..]));
//! let weight = weight.read_with(&LoadOptions::new().all_as(Dtype::BF16))?;
//! # assert_eq!(weight.bytes().len(), 512);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Split files
//!
//! A path to any part of a split file (`NAME-00001-of-00003.gguf`) opens all, as one checkpoint. A
//! missing or mismatched part, or the scale of a weight in another part, is
//! [`ErrorKind::BadSplit`]. [`TensorFile`] does not open a single part ([`ErrorKind::SplitGguf`]).
//!
//! # Writing
//!
//! A [`Writer`] makes a file of tensors and metadata. A [`Model`] plans the file of a transformers
//! model, with its settings. In the other direction,
//! [`Options::transformers_names`](crate::Options::transformers_names) opens a file under the names
//! of transformers.
//!
//! [`ErrorKind::BadSplit`]: crate::ErrorKind::BadSplit
//! [`ErrorKind::SplitGguf`]: crate::ErrorKind::SplitGguf
//! [`ErrorKind::Quantised`]: crate::ErrorKind::Quantised
//! [`ErrorKind::NoDequantizer`]: crate::ErrorKind::NoDequantizer
//! [`ErrorKind::BadCompanion`]: crate::ErrorKind::BadCompanion
//! [`TensorFile`]: crate::TensorFile

mod companions;
mod dequantize;
mod header;
mod kinds;
mod listed;
mod metadata;
mod model;
mod places;
mod reader;
mod split;
mod write;

pub(crate) use header::open;
pub use kinds::Type;
pub use model::{Model, Notes};
pub(crate) use split::open_parts;
pub use write::{Value, Writer};
