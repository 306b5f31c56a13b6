//! [`QuantizationProblem`]: errors in quantised weights.

use alloc::string::String;

use super::{Escaped, Quoted};

/// A problem of a quantised weight, or of its description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum QuantizationProblem {
    /// Codes of a weight would become numbers, or the weight was asked for.
    #[error(
        "codes of the weight {}, stored as {scheme}: load its numbers with \
         QuantizedWeights::Numbers or Checkpoint::dequantized, or its codes with \
         QuantizedWeights::Stored",
        Quoted(.weight)
    )]
    Codes { scheme: &'static str, weight: String },
    /// A known scheme with weights that cannot be read.
    #[error("weights stored as {} are not supported: {}", Escaped(.scheme), Escaped(.reason))]
    Unsupported { scheme: String, reason: String },
    /// A tensor of the weight is absent.
    #[error("{scheme} needs tensor {}, which is missing; if another shard has it, open the directory", Quoted(.expected))]
    Missing { scheme: &'static str, expected: String },
    /// A tensor of the weight does not fit the scheme.
    #[error(
        "for a weight stored as {scheme}, expected {}, found {}",
        Escaped(.expected), Escaped(.found)
    )]
    Mismatch { scheme: &'static str, expected: String, found: String },
    /// A tensor next to the weight is unknown to the scheme.
    #[error(
        "unexpected tensor {} for {scheme}: ignoring it would give wrong numbers",
        Quoted(.companion)
    )]
    Unexplained { scheme: &'static str, companion: String },
    /// Codes and scales cannot be [arranged](crate::checkpoint::Arranged) in the same way.
    #[error("a weight stored as {scheme} cannot be arranged so: {}", Escaped(.problem))]
    Arrangement { scheme: &'static str, problem: String },
    /// Two schemes fit.
    #[error("it may be stored as {one} or as {other}; the model's config.json should name one")]
    Ambiguous { one: &'static str, other: &'static str },
    /// Settings that cannot be read, or contradict the files.
    #[error("the settings of quantised weights are wrong: {}", Escaped(.problem))]
    Config { problem: String },
}
