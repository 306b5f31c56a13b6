//! The safetensors format: headers, dtypes, tensors in memory, conversions and slices.
//!
//! This module opens no file, and most of it needs no `std`. Begin with `dtype`, then
//! `header/parse.rs`, the rules.
//!
//! | module | is about |
//! |---|---|
//! | `dtype`, `tensor` | types of elements; one tensor: shape, elements, bytes |
//! | `header` | the text of the header, and entries of its metadata |
//! | `convert` | conversions between dtypes |
//! | `slice` | the bytes of a slice |
//! | `tied` | tensors that share storage, and their record |
//! | `error` | every way to fail |
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
