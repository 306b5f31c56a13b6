//! [`Divided`]: an output that is divided among ranks.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use safetensors_core::ranks::{RankPlan, RankRules};
use safetensors_core::{SaveOptions, ShardOptions, TensorSource};

use crate::input::Rewrite;
use crate::model::ranks::{Rules, advise, read_plan, world_size};
use crate::terminal::report::wrong_usage;

/// The options that divide the output among ranks.
#[derive(Debug, clap::Args)]
pub(super) struct Ranks {
    /// Divide OUT among N ranks, each with files of its own; by the rules or the preset
    ///
    /// Rules apply to the names in OUT
    #[arg(long, value_name = "N", value_parser = world_size)]
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
    #[command(flatten)]
    rules: Rules,
}

/// How the output is divided among ranks.
#[derive(Debug)]
pub(super) enum Divided {
    /// By rules, among this many ranks.
    Rules(usize, RankRules),
    /// By a plan.
    Plan(RankPlan),
}

impl Ranks {
    /// Whether the output is divided. Rules alone are wrong usage.
    pub(super) fn is_given(&self) -> anyhow::Result<bool> {
        let is_given = self.ranks.is_some() || self.plan.is_some();
        if is_given || self.rules.is_empty() {
            Ok(is_given)
        } else {
            Err(wrong_usage("--rule and --preset need --ranks"))
        }
    }

    /// How tensors of these names are divided; `None` if they are not.
    pub(super) fn divided<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> anyhow::Result<Option<Divided>> {
        Ok(match (self.ranks, &self.plan) {
            (_, Some(plan)) => Some(Divided::Plan(read_plan(plan)?)),
            (Some(ranks), None) => Some(Divided::Rules(ranks, self.rules.rules(names)?)),
            (None, None) => None,
        })
    }
}

impl Divided {
    /// The plan of what is written.
    pub(super) fn plan(
        &self,
        rewrite: &Rewrite<'_>,
        options: &SaveOptions,
    ) -> anyhow::Result<RankPlan> {
        match self {
            Self::Rules(ranks, rules) => rewrite.plan_ranks(rules, *ranks, options).map_err(advise),
            Self::Plan(plan) => {
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
        options: &ShardOptions,
    ) -> anyhow::Result<()> {
        let plan = self.plan(rewrite, &SaveOptions::new())?;
        rewrite.save_ranks(directory, &plan, &attempt(), options)?;
        Ok(())
    }
}

/// A name that no other save has.
fn attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("convert-{}-{}", std::process::id(), now.as_nanos())
}
