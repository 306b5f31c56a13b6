//! GGUF: the files of llama.cpp and other users of ggml.
//!
//! [`TensorFile`] opens one. Plain types are exact: `F32`, `F16`, `BF16`, `F64` and the integers.
//! Quantised tensors are listed with their [types](Type). Their values are read with
//! [`Options::dequantize`](crate::Options::dequantize), as F32, block by block, and are the numbers
//! that the reference implementation, the Python package `gguf`, computes. Their bytes are read as
//! they are with [`Options::blocks`](crate::Options::blocks). Without either, to read one is
//! [`ErrorKind::Quantised`].
//!
//! | dequantised | types |
//! |---|---|
//! | blocks of 32 and more | `Q1_0` `Q2_0` `Q4_0` `Q4_1` `Q5_0` `Q5_1` `Q8_0` `MXFP4` `NVFP4` `IQ4_NL` |
//! | K-quants | `Q2_K` `Q3_K` `Q4_K` `Q5_K` `Q6_K` |
//! | rows of tables | `IQ1_S` `IQ1_M` `IQ2_XXS` `IQ2_XS` `IQ2_S` `IQ3_XXS` `IQ3_S` |
//! | others in blocks of 256 | `TQ1_0` `TQ2_0` `IQ4_XS` |
//!
//! To read a tensor of another type is [`ErrorKind::NoDequantizer`], which names it. A type that is
//! not known is listed by its number, with the bytes up to the next tensor.
//!
//! A module can have more tensors than its quantised weight `X.weight`:
//!
//! | tensor | with [`Options::dequantize`](crate::Options::dequantize) |
//! |---|---|
//! | `X.bias` | read |
//! | `X.scale`, F32: one number, or one for each expert | multiplies the numbers of the weight, and is not listed |
//! | `X.input_scale` | not listed: it is for activations |
//! | `X.` and anything else | read; the weight is [`ErrorKind::BadCompanion`] |
//!
//! ComfyUI-GGUF stores some tensors in rows of 256 numbers, with the true shape in a key
//! (`comfy.gguf.orig_shape.NAME`). They are listed with that shape, except as blocks.
//!
//! Dimensions are in the order of safetensors, the outermost first: GGUF has them the other way
//! round. The keys of the file become metadata: texts, numbers, booleans, and arrays of at most
//! 64 values, as JSON. Arrays in an array count as values, and so do the values in them. Longer
//! arrays, such as the tokens of a tokenizer, are skipped. Arrays in arrays that are nested more
//! than 4 deep are an error.
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
//! Each part of a file that was split (`NAME-00001-of-00003.gguf`) says its number and how many there
//! are. A path to any part opens all of them, as one checkpoint. A part that is missing, is another
//! one than its name says, or counts other parts or tensors is [`ErrorKind::BadSplit`], and so is the
//! scale of a weight in another part; one that is opened as [`TensorFile`] alone is
//! [`ErrorKind::SplitGguf`].
//!
//! # Writing
//!
//! A [`Writer`] makes a file of tensors and metadata. A [`Model`] reads the files next to the
//! weights of a model of transformers, and plans the whole file. In the other direction,
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
