//! [`Divided`]: an output that is divided among ranks.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use safetensors_core::ranks::{RankPlan, RankRules};
use safetensors_core::{SaveOptions, ShardOptions, TensorSource};

use crate::input::Rewrite;
use crate::input::select::Matcher;
use crate::model::ranks::{Rules, advise, read_plan, world_size};
use crate::terminal::report::wrong_usage;

/// The options that divide the output among ranks.
#[derive(Debug, clap::Args)]
pub(super) struct Ranks {
    /// Divide OUT among N ranks, each with files of its own; by the rules or the preset
    ///
    /// Rules apply to the names in OUT
    #[arg(long, value_name = "N", value_parser = world_size())]
    ranks: Option<usize>,
    /// Divide OUT among ranks by a plan that `safetensors plan` has saved
    ///
    /// It must have the tensors of OUT, with their dtypes and shapes
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["ranks", "rules", "preset"],
        value_parser = crate::input::address::parser()
    )]
    plan: Option<PathBuf>,
    /// Write the ranks' files as PyTorch's distributed checkpoints (DCP) have them
    ///
    /// HuggingFaceStorageReader reads them, and so does every command here. OUT must have no other
    /// files of tensors; with --ranks or --plan
    #[arg(long)]
    dcp: bool,
    #[command(flatten)]
    rules: Rules,
}

/// How the output is divided among ranks.
#[derive(Debug)]
pub(super) struct Divided {
    division: Division,
    /// Whether the files are PyTorch's.
    dcp: bool,
}

#[derive(Debug)]
enum Division {
    /// By rules, among this many ranks.
    Rules(usize, RankRules),
    /// By a plan.
    Plan(RankPlan),
}

impl Ranks {
    /// Returns `true` if the output is divided.
    pub(super) fn is_given(&self) -> bool {
        self.ranks.is_some() || self.plan.is_some()
    }

    /// Refuses options that have nothing to divide.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !self.is_given() && !self.rules.is_empty() {
            return Err(wrong_usage("--rule and --preset need --ranks"));
        }
        if !self.is_given() && self.dcp {
            return Err(wrong_usage("--dcp needs --ranks or --plan"));
        }
        Ok(())
    }

    /// How tensors of these names are divided; `None` if they are not.
    pub(super) fn divided(
        &self,
        names: &[&str],
        matcher: Matcher<'_>,
    ) -> anyhow::Result<Option<Divided>> {
        let division = match (self.ranks, &self.plan) {
            (_, Some(plan)) => Division::Plan(read_plan(plan)?),
            (Some(ranks), None) => Division::Rules(ranks, self.rules.rules(names, matcher)?),
            (None, None) => return Ok(None),
        };
        Ok(Some(Divided { division, dcp: self.dcp }))
    }
}

impl Divided {
    /// Returns the plan of the output.
    pub(super) fn plan(
        &self,
        rewrite: &Rewrite<'_>,
        options: &SaveOptions,
    ) -> anyhow::Result<RankPlan> {
        match &self.division {
            Division::Rules(ranks, rules) => {
                rewrite.plan_ranks(rules, *ranks, options).map_err(advise)
            }
            Division::Plan(plan) => {
                let written = rewrite.plan(options)?;
                let tensors = written.tensors();
                plan.check_tensors(tensors.map(|(name, it)| (name, it.dtype(), it.shape())))?;
                plan.check_index(&ShardOptions::new().save_options(options.clone()))?;
                Ok(plan.clone())
            }
        }
    }

    /// Writes the files of all ranks.
    pub(super) fn write(
        &self,
        rewrite: &Rewrite<'_>,
        directory: &Path,
        options: ShardOptions,
    ) -> anyhow::Result<()> {
        let plan = self.plan(rewrite, &SaveOptions::new())?;
        rewrite.save_ranks(directory, &plan, &attempt(), &options.dcp(self.dcp))?;
        Ok(())
    }
}

/// A name that no other save has.
fn attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("convert-{}-{}", std::process::id(), now.as_nanos())
}
