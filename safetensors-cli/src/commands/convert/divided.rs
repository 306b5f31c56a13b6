//! [`Divided`]: an output for several ranks.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use safetensors_core::ranks::RankPlan;
use safetensors_core::{SaveOptions, ShardOptions, TensorSource};

use crate::input::Rewrite;
use crate::input::select::Matcher;
use crate::model::ranks::{Rules, advise, read_plan, world_size};
use crate::terminal::report::wrong_usage;

/// The options that divide the output among ranks.
#[derive(Debug, clap::Args)]
pub(super) struct Ranks {
    /// Divide OUT among N ranks, each with separate files; by the rules or the preset
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
    /// With --ranks or --plan: write a distributed checkpoint of PyTorch (DCP)
    ///
    /// HuggingFaceStorageReader reads it, and so does every command here. OUT must have no other
    /// files of tensors
    #[arg(long)]
    dcp: bool,
    #[command(flatten)]
    rules: Rules,
}

#[derive(Debug)]
pub(super) struct Divided {
    pub(super) plan: RankPlan,
    /// Whether the files are PyTorch's.
    dcp: bool,
}

impl Ranks {
    pub(super) fn is_given(&self) -> bool {
        self.ranks.is_some() || self.plan.is_some()
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !self.is_given() && !self.rules.is_empty() {
            return Err(wrong_usage("--rule and --preset need --ranks"));
        }
        if !self.is_given() && self.dcp {
            return Err(wrong_usage("--dcp needs --ranks or --plan"));
        }
        Ok(())
    }

    pub(super) fn divided(
        &self,
        rewrite: &Rewrite<'_>,
        matcher: Matcher<'_>,
        options: &SaveOptions,
    ) -> anyhow::Result<Option<Divided>> {
        let plan = match (self.ranks, &self.plan) {
            (_, Some(plan)) => {
                let plan = read_plan(plan)?;
                let written = rewrite.plan(options)?;
                let tensors = written.tensors();
                plan.check_tensors(tensors.map(|(name, it)| (name, it.dtype(), it.shape())))?;
                plan.check_index(&ShardOptions::new().save_options(options.clone()))?;
                plan
            }
            (Some(ranks), None) => {
                let names: Vec<_> = rewrite.tensors().map(|(name, _)| name).collect();
                let rules = self.rules.rules(&names, matcher)?;
                rewrite.plan_ranks(&rules, ranks, options).map_err(advise)?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(Divided { plan, dcp: self.dcp }))
    }
}

impl Divided {
    pub(super) fn write(
        &self,
        rewrite: &Rewrite<'_>,
        directory: &Path,
        options: ShardOptions,
    ) -> anyhow::Result<()> {
        rewrite.save_ranks(directory, &self.plan, &attempt(), &options.dcp(self.dcp))?;
        Ok(())
    }
}

/// A name that no other save has.
fn attempt() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("convert-{}-{}", std::process::id(), now.as_nanos())
}
