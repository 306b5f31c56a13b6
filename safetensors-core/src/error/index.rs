//! [`IndexProblem`]: what can be wrong with an index file.

use super::{Escaped, Quoted};

/// What is wrong with an index file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum IndexProblem {
    /// It is larger than an index may be.
    #[error("it has {found} bytes, over the limit of {limit}")]
    TooLarge { limit: u64, found: u64 },
    /// It is not UTF-8.
    #[error("it is not UTF-8 from its byte {offset}")]
    NotUtf8 { offset: usize },
    /// It has more entries than [`Limits`](crate::Limits) allows.
    #[error("it has more than {limit} entries, the limit")]
    TooManyEntries { limit: usize },
    /// It is not JSON, or not of an index's form, or has a duplicate key.
    #[error("{}", Escaped(.0))]
    Json(String),
    /// `weight_map` is empty.
    #[error("weight_map is empty")]
    Empty,
    /// A shard's file name could lead elsewhere or is none.
    #[error("{} is not a file name below the index's folder that ends in .safetensors", Quoted(.name))]
    UnsafeName { name: String },
}
