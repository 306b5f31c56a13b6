//! What the bytes of a safetensors file mean.
//!
//! A file is a header, a JSON object of names with dtypes, shapes and places, and then the bytes of
//! the tensors. This part parses and writes the header, has the dtypes and the tensors in memory,
//! converts numbers, finds the bytes of a slice, and has the errors of the whole crate. It opens no
//! file, and most of it needs no `std`.
//!
//! It does not know files, shards, quantised weights or libraries of tensors.
//!
//! Begin with `dtype`, one row a dtype, then `header/parse.rs`, the rules of the format.
//!
//! | module | is about |
//! |---|---|
//! | `dtype`, `tensor` | the types of elements; one tensor: shape, elements, bytes |
//! | `header` | the text of the header, and the entries of its metadata |
//! | `convert` | numbers of one dtype as those of another |
//! | `slice` | which bytes a slice of a tensor has |
//! | `tied` | tensors that share storage, and how a file records it |
//! | `error` | every way to fail, and where it happened |
//! | `other_format`, `python_json` | other formats by their first bytes; settings that Python wrote |
//! | `glob`, `patterns`, `parallel`, `trace` | tools: patterns of names, threads, spans |

#[cfg(feature = "std")]
pub mod glob;
pub(crate) mod other_format;
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod python_json;
#[cfg(feature = "std")]
pub(crate) mod trace;

pub(crate) mod dtype;
pub mod error;

#[cfg(feature = "std")]
pub(crate) mod parallel;
#[cfg(feature = "std")]
pub(crate) mod patterns;
pub(crate) mod tensor;

pub mod convert;
pub mod header;
pub mod slice;
pub mod tied;
