//! [`RankProblem`]: errors of ranks, their plans and saves.

use alloc::string::String;
use alloc::vec::Vec;

use super::text::NameList;
use super::{Escaped, Quoted, Shape};

/// A problem of ranks, of plans of their parts, or of their saves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum RankProblem {
    // The numbers of a rank.
    /// A launcher's environment variable has an unexpected value.
    #[error("the variable {} should be {expected}, found {}", Escaped(.variable), Quoted(.found))]
    BadVariable { variable: String, expected: &'static str, found: String },
    /// Two variables of launchers, such as `RANK=1`, contradict each other.
    #[error("the launchers contradict each other: {}, but {}", Escaped(.one), Escaped(.other))]
    Contradiction { one: String, other: String },

    // Rules and plans.
    /// A text is not a rule.
    #[error("{}, found {}", Escaped(.expected), Quoted(.found))]
    BadRule { expected: String, found: String },
    /// No rule divides a tensor.
    #[error("no rule divides it among the ranks; add a rule that splits or replicates it")]
    NoRule,
    /// Offsets that do not divide the dimension into a part a rank.
    #[error(
        "dimension {dim} of length {len} should be cut at {} offsets that ascend from 0 to {len}, \
         one more than the {world_size} ranks, found {}",
        .world_size + 1, Shape(.offsets)
    )]
    BadOffsets { dim: usize, len: usize, world_size: usize, offsets: Vec<usize> },
    /// More ranks than are supported.
    #[error("the world size should be from 1 to {limit}, found {found}")]
    WorldSize { limit: usize, found: usize },
    /// A plan has more parts of all tensors and ranks than are supported.
    #[error(
        "a plan of {tensors} tensors for {world_size} ranks has more parts than the limit of {limit}"
    )]
    TooManyParts { limit: usize, tensors: usize, world_size: usize },
    /// The text of a plan is malformed.
    #[error("the plan of ranks is malformed: {}", Escaped(.problem))]
    BadPlan { problem: String },

    // Parts in files.
    /// A malformed record of parts, parts that do not make up a tensor, or parts of different
    /// saves.
    #[error("the parts of ranks are malformed: {}", Escaped(.problem))]
    BadParts { problem: String },
    /// A file of parts. [`Checkpoint::open`](crate::Checkpoint::open) of the directory of all of
    /// them makes whole tensors.
    #[error(
        "expected whole tensors, found parts that ranks have saved: open the directory of all \
         their files"
    )]
    PartsOfTensors,
    /// The directory to save in has parts that ranks have saved.
    #[error(
        "the directory holds parts saved by ranks, and new files would hide or mix with them: use \
         another directory, or move the parts away"
    )]
    HidesParts,
    /// A rank's tensors are not the ones of its plan.
    #[error(
        "rank {rank} should save the parts of its plan; missing: {}; not in the plan: {}",
        NameList(.missing), NameList(.extra)
    )]
    WrongTensors { rank: usize, missing: Vec<String>, extra: Vec<String> },

    // Saving from ranks.
    /// Not a name of an attempt to save.
    #[error(
        "an attempt is named by 1 to 64 letters, digits, '-' and '_', found {}",
        Quoted(.found)
    )]
    BadAttempt { found: String },
    /// The ranks of an attempt have different plans or options.
    #[error(
        "the plan or options of attempt {} differ between ranks: use the same on all, and a new \
         attempt for each save",
        Quoted(.attempt)
    )]
    AttemptDiffers { attempt: String },
    /// The attempt is complete, and the directory opens as its result.
    #[error(
        "attempt {} is already complete, and nothing was changed: give a new save a new attempt",
        Quoted(.attempt)
    )]
    AttemptComplete { attempt: String },
    /// A newer attempt has replaced this one.
    #[error(
        "a newer attempt was completed first: the parts of attempt {} are gone",
        Quoted(.attempt)
    )]
    AttemptSuperseded { attempt: String },
}
