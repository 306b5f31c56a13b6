//! [`IndexProblem`]: errors in the text of an index file.

use alloc::string::String;

use super::{Escaped, Quoted};

/// A problem of an index file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum IndexProblem {
    /// Larger than [`Limits`](crate::Limits) allows.
    #[error("it has {found} bytes, over the limit of {limit}")]
    TooLarge { limit: u64, found: u64 },
    /// Not UTF-8.
    #[error("it is not UTF-8 from byte {offset} on")]
    NotUtf8 { offset: usize },
    /// More entries than [`Limits`](crate::Limits) allows.
    #[error("it has more entries than the limit of {limit}")]
    TooManyEntries { limit: usize },
    /// Not JSON, not the form of an index, or a duplicate key.
    #[error("{}", Escaped(.0))]
    Json(String),
    /// `weight_map` is empty.
    #[error("weight_map is empty")]
    Empty,
    /// A shard's name is not a safe path below the index's directory, or not `*.safetensors`.
    #[error(
        "the shard {} should be a *.safetensors file in or below the index's directory",
        Quoted(.name)
    )]
    UnsafeName { name: String },
}
