//! [`AdapterProblem`]: errors of an adapter, or of its fit to a checkpoint.

use alloc::string::String;

use super::{Escaped, Quoted};

/// A problem of an adapter, or of its fit to a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum AdapterProblem {
    /// The settings cannot be read.
    #[error("the settings of the adapter are wrong: {}", Escaped(.problem))]
    Settings { problem: String },
    /// The adapter has a part, such as a setting, that is not supported.
    #[error("an adapter with {} is not supported", Escaped(.found))]
    Unsupported { found: String },
    /// The adapter lacks a tensor of a module.
    #[error("its module needs tensor {}, which is missing", Quoted(.expected))]
    Missing { expected: String },
    /// The format of another trainer cannot store a part of the adapter.
    #[error("the format of {format} cannot store {}", Escaped(.found))]
    Format { found: String, format: String },
    /// A tensor does not fit the settings, its module, or the tensor that it changes.
    #[error("expected {}, found {}", Escaped(.expected), Escaped(.found))]
    Mismatch { expected: String, found: String },
    /// The checkpoint lacks the tensor that the adapter changes.
    #[error("the {kind} changes {}, which the checkpoint lacks", Quoted(.expected))]
    Unmatched { kind: String, expected: String },
    /// Several tensors of the checkpoint fit.
    #[error("the tensor may change {} or {} of the checkpoint", Quoted(.one), Quoted(.other))]
    Ambiguous { one: String, other: String },
}
