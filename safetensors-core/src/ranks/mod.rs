//! Ranks: the processes of a job, which each hold a part of a model.
//!
//! A plan assigns each rank a part of each tensor. A rank reads its parts, and saves them next to
//! the parts of the others; the last one makes them one checkpoint. Ranks do not communicate: each
//! needs its number, the number of ranks, and files that all can reach.
//!
//! | to | use |
//! |---|---|
//! | know the rank of this process | [`Rank::from_env`] |
//! | set which tensors are split | [`RankRules`] |
//! | know the parts of each rank | [`RankPlan`] |
//! | read the parts of a rank | [`RankPlan::read`] |
//! | save the parts of all ranks as one checkpoint | [`RankSaver`] |
//! | save them so that PyTorch reads them | [`ShardOptions::dcp`](crate::ShardOptions::dcp) |
//! | read saved parts as joined tensors | [`Checkpoint::open`](crate::Checkpoint::open) |

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
