//! The header: every tensor's name, dtype, shape and place, and the file's metadata.

mod canonical;
#[cfg(test)]
mod differential;
mod encode;
mod json;
mod model;
mod parse;
mod scan;
mod validate;

pub(crate) use encode::{Entry, encode};
pub use model::{Header, Metadata, TensorInfo};
pub use parse::Limits;

/// The key under which the format keeps metadata; no tensor can have this name.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// The bytes before the header's text: its length as a little-endian `u64`.
pub(crate) const LENGTH_BYTES: usize = 8;
