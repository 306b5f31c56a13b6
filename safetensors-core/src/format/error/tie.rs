//! [`TieProblem`]: errors of tensors that share memory.

use alloc::string::String;
use alloc::vec::Vec;

use super::Quoted;
use super::text::NameList;

/// A problem of tensors that share memory, or of the names of tied weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum TieProblem {
    /// No tensor of the storage fills it, so none can represent the others.
    #[error(
        "no tensor fills the storage that these share: {}; copy them, or save each view as a \
         separate tensor",
        NameList(.names)
    )]
    NotCovered { names: Vec<String> },
    /// A tensor shares another's storage without being the same tensor.
    #[error(
        "it shares memory with {}, but differs in dtype, shape or offset: copy it, or save each \
         view as a separate tensor",
        Quoted(.kept)
    )]
    PartlyTied { kept: String },
    /// The metadata has another entry of a dropped name.
    #[error(
        "the metadata cannot record it as another name of {}: the key already has the value {}",
        Quoted(.kept), Quoted(.found)
    )]
    NotRecorded { kept: String, found: String },
    /// A dropped name is a metadata key with a fixed meaning.
    #[error(
        "the metadata cannot record it as another name of {}, because the key has a fixed \
         meaning: keep this name, or rename it",
        Quoted(.kept)
    )]
    Reserved { kept: String },
}
