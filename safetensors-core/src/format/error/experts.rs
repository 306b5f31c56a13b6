//! [`ExpertProblem`]: the errors in the experts of a mixture.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Escaped, Quoted, Shape};

/// A problem of experts that are to be split or stacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ExpertProblem {
    /// Nothing says where stacks have the gate.
    #[error(
        "the order of gate and up in stacked experts is not known: {}; \
         ExpertOptions::gate_up sets it",
        Escaped(.reason)
    )]
    UnknownModel { reason: String },
    /// No tensor has the name of an expert.
    #[error("there are no experts: expected tensors such as {} or {}", Quoted(.split), Quoted(.stacked))]
    None { split: String, stacked: String },
    /// An expert lacks a tensor that others have.
    #[error("tensor {} is missing, one of {count} experts", Quoted(.expected))]
    Missing { expected: String, count: usize },
    /// A stack does not fit the others of its layer.
    #[error("expected {expected} in a stack of experts, found {}", Shape(.found))]
    Shape { expected: String, found: Vec<usize> },
}
