//! [`RankSaver`]: each rank saves its parts, and the last one puts the checkpoint in place.

use std::path::Path;

use super::attempt::{Attempt, RankSaved, check_attempt};
use super::files::RankFiles;
use super::plan::RankPlan;
use super::planned::PlannedRank;
use crate::checkpoint::store::WritableDirectory;
use crate::checkpoint::{LocalDirectory, ShardOptions, StagedShards, write_others};
use crate::format::error::Result;
#[cfg(doc)]
use crate::format::error::{ErrorKind, RankProblem};
use crate::format::tensor::TensorSource;

/// Saves the parts that a rank holds to a directory that all ranks share. The last rank puts the
/// files of all of them in place, with one index over all. No rank waits.
///
/// The tensors are the rank's parts, by the names of the full tensors. A replicated tensor is saved
/// by one of the ranks, and a part that several ranks share by the first of them, so the others
/// need not give it. A dtype or shape that differs from the plan is an error.
///
/// The attempt is a name that all ranks share and that no other save to this directory has. Its
/// parts are in a hidden directory with that name until all are there, so parts of different
/// attempts never mix. Parts that are there count, from any process. So a job that is started again
/// and trains the same step again needs another name: for example the step with the number of the
/// restart, which is `TORCHELASTIC_RESTART_COUNT` or `SLURM_RESTART_COUNT`.
///
/// - **A rank that dies** leaves the earlier checkpoint unchanged. If it is started again with the
///   same values, it saves the same attempt again. Otherwise all ranks begin a new one.
/// - **A rank that saves again** replaces its own parts.
/// - **An attempt that is overtaken** by a later one, which is complete first, is removed.
///
/// At every moment the directory opens as the complete earlier checkpoint or as the complete new
/// one, and files are replaced as with [`save_sharded`](crate::save_sharded). The disk needs space
/// for both.
///
/// The ranks take turns by the lock of the directory, which needs a file system with locks that
/// reach all machines. Without locks the ranks still write to different files. If two of them then
/// come last at the same time, one fails with [`ErrorKind::Overtaken`] or [`ErrorKind::Io`].
///
/// [`ShardOptions::dcp`] saves like PyTorch's distributed checkpoints, without an index and to a
/// separate directory. While the files of such a save get their names, the directory has some of
/// them, and does not open.
///
/// [`ShardOptions::max_shard_size`] divides the parts of a rank further. All ranks need equal
/// options. [`ShardOptions::contention`] has no effect, because ranks wait for one another.
///
/// ```
/// use safetensors_core::ranks::{RankRules, RankSaved, RankSaver};
/// use safetensors_core::{Checkpoint, ShardOptions, TensorView};
///
/// let dir = tempfile::tempdir()?;
/// let values = [1_f32, 2., 3., 4.];
/// let rules = RankRules::new().parse_rule("w=split:0")?;
/// let whole = TensorView::from_slice(&[4], &values)?;
/// let plan = rules.plan_tensors([("w", whole.dtype(), vec![4])], 2)?;
/// // This is what each of two processes does.
/// let save = |rank: usize| {
///     let part = whole.slice((rank * 2..rank * 2 + 2,))?;
///     let saver = RankSaver::new(&plan, rank, "step-100");
///     saver.save(dir.path(), [("w", part)], &ShardOptions::new())
/// };
/// assert_eq!(save(1)?, RankSaved::Waiting { missing: 1 });
/// assert!(Checkpoint::open(dir.path()).is_err());
/// assert!(matches!(save(0)?, RankSaved::Complete(_)));
/// let saved = Checkpoint::open(dir.path())?;
/// assert_eq!(saved.tensor("w")?.read()?.as_slice::<f32>()?, values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Parts in files
///
/// Each file that a rank saves is an ordinary safetensors file, and the index names the tensors of
/// all files. A part of the tensor `NAME` is the tensor `NAME.part-00002-of-00004`, so a program
/// that does not know parts never takes one for the full tensor: it finds no tensor `NAME`. A
/// replicated tensor keeps its name and is in one of the files.
///
/// The metadata of each file has the entry `safetensors_bridge.parts`, a JSON object that maps the
/// names of the parts in the file to their places:
///
/// ```json
/// {"up.part-00002-of-00004": {"tensor": "up", "shape": [64, 16], "dim": 0, "offset": 16}}
/// ```
///
/// The length of the part is the length of the tensor in the file. The parts of a tensor meet
/// without gap and overlap. The metadata of the index, or of the one file if there is no index, has
/// the name of the save's attempt as `safetensors_bridge.attempt`. Files of [`ShardOptions::dcp`]
/// have no index, so each has that name, and the number of all files as `safetensors_bridge.files`.
#[derive(Clone, Copy, Debug)]
pub struct RankSaver<'a> {
    plan: &'a RankPlan,
    rank: usize,
    attempt: &'a str,
}

impl<'a> RankSaver<'a> {
    /// Makes a saver for this rank of a plan, in the attempt of this name: the name is equal on all
    /// ranks.
    pub fn new(plan: &'a RankPlan, rank: usize, attempt: &'a str) -> Self {
        Self { plan, rank, attempt }
    }

    /// Saves the parts of this rank to a directory that all ranks share.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NoSuchRank`]; [`RankProblem::BadAttempt`]; [`RankProblem::WrongTensors`],
    ///   [`ErrorKind::WrongDtype`] and [`ErrorKind::WrongShape`] for tensors that are not in the
    ///   plan.
    /// - [`RankProblem::AttemptDiffers`] if another rank saves by another plan or with other
    ///   options.
    /// - [`RankProblem::AttemptComplete`] if the attempt is complete already, so that nothing needs
    ///   to be done; [`RankProblem::AttemptSuperseded`] if a later one was complete before this
    ///   rank.
    /// - As for [`save_sharded`](crate::save_sharded).
    pub fn save<N: AsRef<str>, T: TensorSource>(
        &self,
        directory: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &ShardOptions,
    ) -> Result<RankSaved> {
        let directory = directory.as_ref();
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let Self { plan, rank, attempt } = *self;
        plan.check_rank(rank)?;
        let files = RankFiles::new(plan, options).map_err(|error| error.in_path(directory))?;
        files.check(directory, attempt, options)?;
        let planned = PlannedRank::new(&files, rank, tensors)?;
        let name = attempt;
        let attempt = Attempt::enter(directory, name, &files, options)?;
        let temp = attempt.begin(rank)?;
        for file in files.of_rank(rank) {
            let (parts, options) = planned.contents(file, name)?;
            let path = temp.path().join(&file.name);
            crate::file::save::save(&path, planned.sources(file, &parts), &options)
                .map_err(|error| error.moved(&path, &directory.join(&file.name)))
                .map_err(|error| attempt.explain(error, temp.path()))?;
        }
        attempt.finish(rank, temp)
    }
}

/// Writes the files of all ranks, which no reader finds before the commit, to a directory. This
/// process alone owns them: dropping the result removes them.
pub(crate) fn stage_ranks<'d, N: AsRef<str>, T: TensorSource>(
    place: &'d mut LocalDirectory,
    plan: &RankPlan,
    attempt: &str,
    tensors: impl Fn(usize) -> Result<Vec<(N, T)>>,
    options: &ShardOptions,
) -> Result<StagedShards<'d, LocalDirectory>> {
    let directory = place.path();
    check_attempt(attempt)?;
    let files = RankFiles::new(plan, options).map_err(|error| error.in_path(&directory))?;
    files.check(&directory, attempt, options)?;
    write_others(place, options)?;
    for rank in 0..plan.world_size() {
        let planned = PlannedRank::new(&files, rank, tensors(rank)?)?;
        for file in files.of_rank(rank) {
            let (parts, each) = planned.contents(file, attempt)?;
            place.write(&file.name, planned.sources(file, &parts), &each)?;
        }
    }
    let index = files.index(attempt).map_err(|error| error.in_path(&directory))?;
    Ok(StagedShards::new(place, options, index, files.saved()))
}
