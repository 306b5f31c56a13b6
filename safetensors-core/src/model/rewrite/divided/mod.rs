//! [`Rewrite::save_ranks`]: divides tensors among ranks, in one process.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use super::{PlannedTensor, Rewrite};
use crate::checkpoint::{LocalDirectory, SavedShards, ShardOptions};
use crate::file::io::ReadAt;
use crate::file::save::SaveOptions;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::slice::{IntoIndices, Selection, TensorPart};
use crate::format::tensor::{Sink, TensorSource, named};
use crate::format::tied;
use crate::ranks::{RankPlan, RankRules, stage_ranks};

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Plans how [`save_ranks`](Rewrite::save_ranks) divides the tensors among `world_size` ranks.
    /// Tied weights are one tensor.
    ///
    /// # Errors
    ///
    /// As for [`RankRules::plan_tensors`] and [`plan`](Rewrite::plan);
    /// [`ErrorKind::BadIndex`](crate::ErrorKind::BadIndex) for too many names and ranks.
    pub fn plan_ranks(
        &self,
        rules: &RankRules,
        world_size: usize,
        options: &SaveOptions,
    ) -> Result<RankPlan> {
        let plan = self.plan(options)?;
        let tensors =
            plan.tensors().map(|(name, tensor)| (name, tensor.dtype(), tensor.shape().to_vec()));
        let ranks = rules.plan_tensors(tensors, world_size)?;
        ranks.check_index(&ShardOptions::new().save_options(plan.options.clone()))?;
        Ok(ranks)
    }

    /// Saves each rank's parts of a plan in separate files, like [ranks](crate::ranks) that hold
    /// them. [`open`](crate::Checkpoint::open) joins the tensors again.
    ///
    /// A tensor that is cast or [added](Rewrite::add) is read once for each rank. `attempt` is a
    /// name that no other save to this directory has, as of a
    /// [`RankSaver`](crate::ranks::RankSaver).
    ///
    /// ```
    /// use safetensors_core::ranks::RankRules;
    /// use safetensors_core::{
    ///     Checkpoint, LoadOptions, Rewrite, SaveOptions, ShardOptions, TensorView, save,
    /// };
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let values = [1_i32, 2, 3, 4];
    /// save(&path, [("w", TensorView::from_slice(&[2, 2], &values)?)], &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let rewrite = Rewrite::from_checkpoint(&checkpoint);
    /// let rules = RankRules::new().parse_rule("w=split:1")?;
    /// let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new())?;
    /// let to = dir.path().join("divided");
    /// rewrite.save_ranks(&to, &plan, "convert", &ShardOptions::new())?;
    ///
    /// let divided = Checkpoint::open(&to)?;
    /// let right = plan.read(&divided, 1, &LoadOptions::new())?;
    /// assert_eq!(right[0].as_slice::<i32>()?, [2, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Mismatches`](crate::ErrorKind::Mismatches) if the plan is for other tensors; otherwise as
    /// for [`save_sharded`](Rewrite::save_sharded). No error leaves files behind.
    pub fn save_ranks(
        &self,
        directory: impl AsRef<Path>,
        plan: &RankPlan,
        attempt: &str,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        let directory = directory.as_ref();
        self.refuse_deselected().map_err(|error| error.in_path(directory))?;
        let mut options = self.complete_shard_options(options);
        let mut tensors: Vec<_> = self.tensors().collect();
        if let Some(tied) = options.save_options.tied.take() {
            let aliases = tied::drop_copies(&mut named(&tensors), &tied)?;
            tensors.retain(|&(name, _)| !aliases.contains_key(name));
            tied::record(&mut options.save_options.metadata, aliases)?;
        }
        plan.check_tensors(tensors.iter().map(|(name, it)| (*name, it.dtype(), it.shape())))?;
        options.save_options.progress = options.save_options.progress.for_total(plan.total_size());
        // The plan may have been made of these tensors in another order.
        let written: HashMap<&str, &PlannedTensor<'_, S>> = tensors.into_iter().collect();
        let parts = |rank| {
            let parts = plan.tensors().filter_map(|planned| {
                let (name, tensor) = written.get_key_value(planned.name())?;
                let part = planned.part(rank).and_then(|part| PartOf::new(tensor, part));
                Some(part.map(|part| (*name, part)))
            });
            parts.collect::<Result<Vec<_>>>()
        };
        let mut place = LocalDirectory::create(directory, &options)?;
        let mut staged = stage_ranks(&mut place, plan, attempt, parts, &options)?;
        staged.begin()?;
        self.check_before_replacing(directory)?;
        staged.commit()
    }
}

struct PartOf<'r, 'a, S> {
    tensor: &'r PlannedTensor<'a, S>,
    part: TensorPart,
    selection: Selection,
}

impl<'r, 'a, S: ReadAt> PartOf<'r, 'a, S> {
    fn new(tensor: &'r PlannedTensor<'a, S>, part: TensorPart) -> Result<Self> {
        let indices = part.into_indices(tensor.shape())?;
        let selection = Selection::new(tensor.dtype(), tensor.shape(), &indices)?;
        Ok(Self { tensor, part, selection })
    }
}

impl<S: ReadAt> TensorSource for PartOf<'_, '_, S> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.selection.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        if let Some(tensor) = self.tensor.unchanged() {
            return tensor.slice(self.part)?.write_to(sink);
        }
        // The entire tensor passes by, and bytes inside the part are kept.
        let mut runs = self.selection.runs().peekable();
        let mut position = 0_u64;
        let mut kept = Vec::new();
        self.tensor.write_to(&mut |bytes| {
            let start = position;
            let end = position + bytes.len() as u64;
            position = end;
            kept.clear();
            while let Some(run) = runs.peek().filter(|run| run.start < end) {
                let from = run.start.max(start) - start;
                let to = run.end.min(end) - start;
                kept.extend_from_slice(&bytes[from as usize..to as usize]);
                if run.end > end {
                    break;
                }
                runs.next();
            }
            if kept.is_empty() { Ok(()) } else { sink(&kept) }
        })
    }
}
