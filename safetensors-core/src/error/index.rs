//! [`IndexProblem`]: what can be wrong with an index file.

use std::fmt;

use super::Quoted;

/// What is wrong with an index file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum IndexProblem {
    /// It is larger than an index may be.
    #[error("it has {found} bytes, over the limit of {limit}")]
    TooLarge { limit: u64, found: u64 },
    /// It is not JSON, or not of an index's form, or has a duplicate key.
    #[error("{0}")]
    Json(String),
    /// `weight_map` is empty.
    #[error("weight_map is empty")]
    Empty,
    /// A shard's file name could lead elsewhere or is none.
    #[error("{} is not a file name below the index's folder that ends in .safetensors", Quoted(.name))]
    UnsafeName { name: String },
}

/// File names for a message: all of a few, the first of many.
pub(super) struct NameList<'a>(pub(super) &'a [String]);

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.0.is_empty() {
            return f.write_str("neither");
        }
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, Quoted(name))?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
