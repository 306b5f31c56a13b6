//! Saving from ranks: each sends its files, and whichever comes last writes one index over all.

pub(super) mod attempt;
mod commit;
mod manifest;
#[cfg(test)]
mod tests;

use attempt::Attempt;
use safetensors_core::ranks::{PlannedRank, RankSaved, RankSaver};
use safetensors_core::{ErrorKind, Result, ShardOptions, TensorSource};

use super::upload::Upload;
use crate::remote::place::RemotePlace;
use crate::remote::{RemoteOptions, local_path};

impl RemoteOptions {
    /// Saves the parts that one rank holds to a directory of a remote store that all ranks share.
    /// The rank that comes last writes one index over the files of all of them. No rank waits for
    /// another.
    ///
    /// This is [`RankSaver::save`] for buckets: all arguments and the files mean the same.
    /// [`open`](super::super::open) opens what was saved, as whole tensors.
    ///
    /// ```
    /// use safetensors_core::ranks::{RankRules, RankSaved, RankSaver};
    /// use safetensors_core::{ShardOptions, TensorSource, TensorView};
    /// use safetensors_hub::remote::{self, RemoteOptions};
    ///
    /// let address = "memory:///trained"; // or s3://bucket/trained
    /// let values = [1_f32, 2., 3., 4.];
    /// let rules = RankRules::new().parse_rule("w=split:0")?;
    /// let whole = TensorView::from_slice(&[4], &values)?;
    /// let plan = rules.plan_tensors([("w", whole.dtype(), vec![4])], 2)?;
    /// // This is what each of two processes does.
    /// let save = |rank: usize| {
    ///     let part = whole.slice((rank * 2..rank * 2 + 2,))?;
    ///     let saver = RankSaver::new(&plan, rank, "step-100");
    ///     RemoteOptions::new().save_rank(address, &saver, [("w", part)], &ShardOptions::new())
    /// };
    /// assert_eq!(save(1)?, RankSaved::Waiting { missing: 1 });
    /// assert!(remote::open(address).is_err());
    /// assert!(matches!(save(0)?, RankSaved::Complete(_)));
    ///
    /// let checkpoint = remote::open(address)?;
    /// assert_eq!(checkpoint.tensor("w")?.read()?.as_slice::<f32>()?, values);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Objects
    ///
    /// Everything of the attempt `step-100` lies below `model.step-100.ranks/`, beside the index:
    ///
    /// | object | says |
    /// |---|---|
    /// | `attempt.json` | by which plan its ranks save, and what the directory held when it began |
    /// | `rank-00002.4be1d0c2.1f0e9a37/…` | the files of a rank; numbers of the attempt and the call |
    /// | `rank-00002.4be1d0c2.1f0e9a37.done` | that all files of this call are there |
    ///
    /// 1. The first rank creates `attempt.json`, if there is none. The others compare it with their
    ///    own plan.
    /// 2. Each rank sends its files, then its mark, and lists the marks.
    /// 3. A rank that finds the marks of all ranks looks whether the checkpoint is still the one
    ///    from the beginning, or that of an attempt that began before. Then it writes the index,
    ///    which names the files where they are, on the condition that the one in place is not
    ///    replaced meanwhile.
    /// 4. It removes the files of the earlier checkpoint, the attempts that began before this one,
    ///    and the marks.
    ///
    /// No object of tensors is ever replaced, and no index names one that may still change. So at
    /// every moment the directory opens as the complete earlier checkpoint or as the complete new
    /// one. If the earlier one is a single file, the new one takes its place when that file is
    /// removed in step 4.
    ///
    /// - **A rank that dies** leaves the earlier checkpoint as it is. If it is started again with
    ///   the same values, it saves the same attempt again. Otherwise all ranks begin a new one.
    /// - **A rank that saves again** replaces its own parts. Until it is done its earlier ones
    ///   count.
    /// - **Two attempts at once** do not mix. If the one that began later is complete first, the
    ///   other fails with [`RankProblem::AttemptSuperseded`]. So does one of two that began at the
    ///   same moment.
    /// - **A checkpoint that anyone else has changed** since the attempt began stays: the rank that
    ///   comes last fails with [`ErrorKind::Overtaken`].
    /// - **An attempt with the name of one that was removed**, after a rollback of the training, is
    ///   another one. Whoever still removes the earlier one leaves it.
    /// - **An answer that is lost**: if the index or `attempt.json` cannot be written, the store is
    ///   asked what is there now. If it is in place, it is written.
    /// - **Two ranks that come last at the same time** both report [`RankSaved::Complete`].
    /// - **What is left of an attempt** that is never complete is removed by the next save to this
    ///   directory that is: by this or by [`save_sharded`](Self::save_sharded). The parts of
    ///   unfinished uploads of killed processes are not listed as objects. A rule of the bucket
    ///   should remove them.
    ///
    /// The store must list what was written just before, as S3, Google Cloud Storage and Azure do,
    /// and must know conditional writes. For a store that knows none, the option `conditional_put`
    /// of [`RemoteOptions::option`] is `disabled`. There a look just before each write takes the
    /// place of the condition, so two saves that write in the same moment may both believe to be
    /// the last one. Each index is whole even then, but names files that the other save may remove.
    /// For an address of the local disk this is [`RankSaver::save`], which has a lock instead.
    ///
    /// [`RankProblem::AttemptSuperseded`]: safetensors_core::error::RankProblem::AttemptSuperseded
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NoSuchRank`]; [`RankProblem::BadAttempt`]; [`RankProblem::WrongTensors`],
    ///   [`ErrorKind::WrongDtype`] and [`ErrorKind::WrongShape`] for tensors that are not those of
    ///   the plan.
    /// - [`RankProblem::AttemptDiffers`] if another rank saves by another plan or with other
    ///   options.
    /// - [`RankProblem::AttemptComplete`] if the attempt is complete already, so that nothing needs
    ///   to be done; [`RankProblem::AttemptSuperseded`] if a later one was complete before this
    ///   rank.
    /// - [`ErrorKind::BadIndex`] for a plan without tensors; [`ErrorKind::Overtaken`], and the
    ///   errors of [`save_sharded`](Self::save_sharded).
    ///
    /// [`RankProblem::AttemptComplete`]: safetensors_core::error::RankProblem::AttemptComplete
    /// [`RankProblem::AttemptDiffers`]: safetensors_core::error::RankProblem::AttemptDiffers
    /// [`RankProblem::AttemptSuperseded`]: safetensors_core::error::RankProblem::AttemptSuperseded
    /// [`RankProblem::BadAttempt`]: safetensors_core::error::RankProblem::BadAttempt
    /// [`RankProblem::WrongTensors`]: safetensors_core::error::RankProblem::WrongTensors
    pub fn save_rank<N: AsRef<str>, T: TensorSource>(
        &self,
        address: &str,
        saver: &RankSaver<'_>,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &ShardOptions,
    ) -> Result<RankSaved> {
        if let Some(directory) = local_path(address)? {
            return saver.save(directory, tensors, options);
        }
        let place = RemotePlace::writable(address, self)?;
        let planned = saver.plan_files(tensors, options);
        let saved = planned.and_then(|planned| save(&place, &planned, options.overwrites()));
        saved.map_err(|error| error.in_file(&place.shown))
    }
}

/// Saves the files of a rank, and the index if it is the last one.
fn save<T: TensorSource>(
    place: &RemotePlace,
    planned: &PlannedRank<'_, T>,
    overwrites: bool,
) -> Result<RankSaved> {
    let rank = planned.rank();
    // An index that cannot be written is an error before anything is sent.
    planned.index_file(|_, file| file.to_owned())?;
    let attempt = Attempt::enter(place, planned, overwrites)?;
    let turn = attempt.turn(rank);
    if let Err(error) = send(place, planned, &attempt, &turn) {
        // Without a mark no rank uses the files, so files that stay do no harm.
        let _ = attempt.forget(&turn);
        return Err(error);
    }
    // From here on another rank may complete the attempt with these files.
    attempt.mark(&turn)?;
    let contents = attempt.contents()?;
    if !contents.is_under_way {
        return attempt.ended(rank, &turn);
    }
    let missing = contents.missing(planned.world_size());
    if missing == 0 {
        return attempt.publish(&contents, rank, &turn);
    }
    if !attempt.is_open()? {
        // Another rank is removing the marks already.
        return attempt.ended(rank, &turn);
    }
    attempt.unmark_earlier(&contents, rank, &turn)?;
    Ok(RankSaved::Waiting { missing })
}

/// Sends the files of a rank. Each has a key that no other call writes to.
fn send<T: TensorSource>(
    place: &RemotePlace,
    planned: &PlannedRank<'_, T>,
    attempt: &Attempt<'_, T>,
    turn: &str,
) -> Result<()> {
    for (number, (saver, name)) in planned.files().enumerate() {
        if saver != planned.rank() {
            continue;
        }
        let key = attempt.key(turn, name);
        let mut upload = Upload::new(place.service.clone(), key, planned.data_len(number));
        let sent = planned.write(number, &mut upload).and_then(|()| {
            let sent = upload.close().and_then(|()| upload.commit());
            Ok(sent.map(drop).map_err(ErrorKind::Io)?)
        });
        sent.map_err(|error| error.in_file(format!("{}/{name}", place.shown)))?;
    }
    Ok(())
}
