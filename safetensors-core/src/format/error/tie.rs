//! [`TieProblem`]: why tensors that share memory cannot be saved once.

use alloc::string::String;
use alloc::vec::Vec;

use super::Quoted;
use super::text::NameList;

/// A problem of tensors that share memory, or of the names of tied weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum TieProblem {
    /// No tensor that shares a storage fills it, so none of them can represent the others.
    #[error(
        "none of the tensors that share its storage fills it: {}; copy them, or save views as \
         tensors of their own",
        NameList(.names)
    )]
    NotCovered { names: Vec<String> },
    /// A tensor shares the storage of another without being the same tensor.
    #[error(
        "it shares the storage of {}, but has another dtype, shape or place in it; copy it, or \
         save views as tensors of their own",
        Quoted(.kept)
    )]
    PartlyTied { kept: String },
    /// A dropped name cannot be recorded, because the metadata has another entry of that name.
    #[error(
        "it cannot be recorded in the metadata as another name of {}, because the metadata already \
         has that key with the value {}",
        Quoted(.kept), Quoted(.found)
    )]
    NotRecorded { kept: String, found: String },
    /// A dropped name cannot be recorded, because it is a metadata key with a fixed meaning.
    #[error(
        "it cannot be recorded in the metadata as another name of {}, because that key has a fixed \
         meaning: keep this name, or rename it",
        Quoted(.kept)
    )]
    Reserved { kept: String },
}
