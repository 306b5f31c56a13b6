//! Ranks: the processes of a job, each of which holds a part of a model.
//!
//! | to | use |
//! |---|---|
//! | know which process this is | [`Rank::from_env`] |
//! | say which tensors are split, and which replicated | [`RankRules`] |
//! | know what each rank holds, and how many bytes that is | [`RankPlan`] |
//! | read the parts of a rank | [`RankPlan::read`] |
//! | save the parts of all ranks as one checkpoint | [`RankSaver`] |
//! | save them so that PyTorch reads them | [`ShardOptions::dcp`](crate::ShardOptions::dcp) |
//! | read what ranks have saved, also with PyTorch, as whole tensors | [`Checkpoint::open`](crate::Checkpoint::open) |
//!
//! No rank talks to another. Each needs its number, the number of ranks, and files that all can
//! reach.
//!
//! ```
//! use safetensors_core::ranks::{Rank, RankRules, RankSaver};
//! use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, ShardOptions, TensorView, save};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model");
//! # std::fs::create_dir(&path)?;
//! # let weight = TensorView::from_slice(&[4, 2], &[0.5_f32; 8])?;
//! # let file = path.join("model.safetensors");
//! # save(file, [("layers.0.mlp.up_proj.weight", weight)], &SaveOptions::new())?;
//! # let trained = dir.path().join("trained");
//! let rank = Rank::from_env()?.unwrap_or_default();
//! let checkpoint = Checkpoint::open(&path)?;
//! let plan = RankRules::llama().plan(&checkpoint, rank.world_size())?;
//! let parts = plan.read(&checkpoint, rank.rank(), &LoadOptions::new())?;
//!
//! // … training …
//! let named = plan.tensors().zip(&parts).map(|(tensor, part)| (tensor.name(), part));
//! let options = ShardOptions::new();
//! let saver = RankSaver::new(&plan, rank.rank(), "step-1000");
//! saver.save(&trained, named, &options)?;
//! // As whole tensors, for any number of ranks.
//! let trained = Checkpoint::open(&trained)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts in files
//!
//! Each file that a rank saves is an ordinary safetensors file, and the index names the tensors of
//! all files. A part of the tensor `NAME` is the tensor `NAME.part-00002-of-00004`, so a program
//! that does not know parts never takes one for the whole: it finds no tensor `NAME`. A replicated
//! tensor keeps its name and lies in one of the files.
//!
//! The metadata of each file has the entry `safetensors_bridge.parts`, a JSON object from the names
//! of the parts in the file to where they belong:
//!
//! ```json
//! {"up.part-00002-of-00004": {"tensor": "up", "shape": [64, 16], "dim": 0, "offset": 16}}
//! ```
//!
//! The length of the part is that of the tensor in the file. The parts of a tensor meet without gap
//! and overlap. The metadata of the index, or of the one file if there is no index, has the name of
//! the save's attempt as `safetensors_bridge.attempt`. Files of [`ShardOptions::dcp`] have no
//! index, so each has that name, and the number of all of them as `safetensors_bridge.files`.
//!
//! [`ShardOptions::dcp`]: crate::ShardOptions::dcp

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
