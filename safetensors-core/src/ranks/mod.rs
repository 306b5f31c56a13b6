//! Ranks: the processes of a job, each of which holds a part of a model.
//!
//! A plan says which part of each tensor each rank holds. A rank reads its parts and nothing else,
//! and saves them next to those of the others; whichever comes last makes them one checkpoint. No
//! rank talks to another: each needs its number, the number of ranks, and files that all can reach.
//!
//! This part knows no launcher's library, no MPI and no collective operation.
//!
//! Begin with `rules.rs` and `plan.rs`. `division.rs` cuts one tensor; `attempt.rs` is how a save
//! becomes complete.
//!
//! | to | use |
//! |---|---|
//! | know which process this is | [`Rank::from_env`] |
//! | say which tensors are split, and which replicated | [`RankRules`] |
//! | know what each rank holds, and how many bytes that is | [`RankPlan`] |
//! | read the parts of a rank | [`RankPlan::read`] |
//! | save the parts of all ranks as one checkpoint | [`RankSaver`] |
//! | save them so that PyTorch reads them | [`ShardOptions::dcp`](crate::ShardOptions::dcp) |
//! | read what ranks have saved as whole tensors | [`Checkpoint::open`](crate::Checkpoint::open) |

mod attempt;
mod division;
mod files;
mod launcher;
mod plan;
mod plan_json;
mod planned;
mod rank;
mod read;
mod rules;
mod save;
#[cfg(test)]
mod tests;

pub use attempt::RankSaved;
pub use division::Division;
pub use plan::{RankPlan, RankTensor};
pub use rank::Rank;
pub use rules::RankRules;
pub use save::RankSaver;
pub(crate) use save::stage_ranks;
