//! [`RankSaver`]: each rank saves its parts, the last one commits.

use std::path::Path;

use super::attempt::{Attempt, RankSaved, check_attempt};
use super::files::RankFiles;
use super::plan::RankPlan;
use super::planned::PlannedRank;
use crate::checkpoint::store::WritableDirectory;
use crate::checkpoint::{LocalDirectory, ShardOptions, StagedShards, write_others};
use crate::file::io::failpoint;
use crate::file::save::stage;
use crate::format::error::{Error, Result};
#[cfg(doc)]
use crate::format::error::{ErrorKind, RankProblem};
use crate::format::tensor::TensorSource;

/// Saves the parts that a rank holds to a directory that all ranks share. The last rank puts the
/// files of all of them in place, with one index. No rank waits.
///
/// The tensors are the rank's parts, by the names of the full tensors. A replicated tensor is saved
/// by one of the ranks, and a shared part by the first that holds it; the others need not give it.
///
/// The attempt is a name that all ranks share and that no other save to this directory has. A
/// restarted job that trains the same step again needs another name: for example the step with
/// `TORCHELASTIC_RESTART_COUNT` or `SLURM_RESTART_COUNT`.
///
/// - **A rank that dies** leaves the earlier checkpoint unchanged. Started again with the same
///   values, it saves the same attempt again. Otherwise all ranks begin a new one.
/// - **A rank that saves again** replaces its own parts.
/// - **An attempt that is overtaken** by a later one, which is complete first, is removed.
///
/// At every moment the directory opens as the complete earlier checkpoint or as the complete new
/// one, as with [`save_sharded`](crate::save_sharded). The disk needs space for both. Without locks
/// that reach all machines, if two ranks come last at the same time, one fails with
/// [`ErrorKind::Overtaken`] or [`ErrorKind::Io`].
///
/// All ranks need equal options. [`ShardOptions::dcp`] needs a separate directory, which does not
/// open while the files get their names. [`ShardOptions::max_shard_size`] divides the parts of a
/// rank further. [`ShardOptions::contention`] has no effect.
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
/// A part of the tensor `NAME` is the tensor `NAME.part-00002-of-00004` of a safetensors file, so
/// that no program takes it for the full tensor. `safetensors_bridge.parts` in the metadata has the
/// places of parts, which meet without gap and overlap:
///
/// ```json
/// {"up.part-00002-of-00004": {"tensor": "up", "shape": [64, 16], "dim": 0, "offset": 16}}
/// ```
///
/// The metadata of the index, or of the one file, has the name of the attempt as
/// `safetensors_bridge.attempt`. Each file of [`ShardOptions::dcp`] has that name, and the number
/// of all files as `safetensors_bridge.files`.
#[derive(Clone, Copy, Debug)]
pub struct RankSaver<'a> {
    plan: &'a RankPlan,
    rank: usize,
    attempt: &'a str,
}

impl<'a> RankSaver<'a> {
    /// Makes a saver for this rank, in the attempt of this name.
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
    /// - [`RankProblem::AttemptDiffers`] if another rank has another plan or other options.
    /// - [`RankProblem::AttemptComplete`]; [`RankProblem::AttemptSuperseded`] if a later attempt
    ///   was complete first.
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
            // Unlike `save`, this makes no directory, so none is left if another rank removes the
            // attempt.
            failpoint::hit("write a file of a rank")
                .map_err(|error| Error::io(error, &path))
                .and_then(|()| stage(&path, planned.sources(file, &parts), &options))
                .and_then(|mut file| file.commit())
                .map_err(|error| error.moved(&path, &directory.join(&file.name)))
                .map_err(|error| attempt.explain(error, temp.path()))?;
        }
        attempt.finish(rank, temp)
    }
}

/// No reader finds the files before the commit. Dropping the result removes them.
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
