//! [`Rules`]: the options that say how tensors are divided among ranks.

use std::path::Path;

use anyhow::Context;
use safetensors_core::ranks::{RankPlan, RankRules};
use safetensors_core::{Error, Limits};

use crate::input;
use crate::terminal::text;

/// The options of every command that divides tensors among ranks.
#[derive(Debug, clap::Args)]
pub(crate) struct Rules {
    /// Divide the tensors that match by RULE; the first that matches counts
    ///
    /// RULE is replicate, split:DIM, uneven:DIM, shared:DIM:PARTS or offsets:DIM:0,...,LEN. May be
    /// given several times
    #[arg(long = "rule", value_name = "GLOB=RULE", value_parser = rule)]
    rules: Vec<String>,
    /// Rules for the other tensors, by the names of a kind of model
    ///
    /// Without this option, the names of the tensors tell the kind
    #[arg(long, value_name = "KIND", value_enum)]
    preset: Option<Preset>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Preset {
    /// Llama, Mistral, Qwen, Gemma, Mixtral
    Llama,
    /// BERT, RoBERTa
    Bert,
    /// No rules but those given
    None,
}

/// Checks a rule. All rules are read together later.
fn rule(text: &str) -> Result<String, Error> {
    RankRules::new().parse_rule(text).map(|_| text.to_owned())
}

impl Rules {
    /// Whether none is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.preset.is_none()
    }

    /// The rules for tensors of these names.
    pub(crate) fn rules<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> anyhow::Result<RankRules> {
        let given =
            self.rules.iter().try_fold(RankRules::new(), |rules, rule| rules.parse_rule(rule))?;
        let preset = match self.preset {
            Some(Preset::Llama) => RankRules::llama(),
            Some(Preset::Bert) => RankRules::bert(),
            Some(Preset::None) => RankRules::new(),
            None => RankRules::for_names(names).unwrap_or_default(),
        };
        Ok(given.then(preset))
    }
}

/// Reads a number of ranks.
pub(crate) fn world_size(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 20;
    match text.parse() {
        Ok(ranks @ 1..=MOST) => Ok(ranks),
        _ => Err(format!("expected a number from 1 to {MOST}")),
    }
}

/// Reads a plan from a file.
pub(crate) fn read_plan(path: &Path) -> anyhow::Result<RankPlan> {
    let json = input::read_named(path, Limits::default().index_bytes)?;
    let json = String::from_utf8(json).with_context(|| text::path(path))?;
    json.parse().with_context(|| text::path(path))
}

/// Adds a remedy to the error of a tensor that cannot be divided.
pub(crate) fn advise(error: Error) -> anyhow::Error {
    use safetensors_core::ErrorKind;
    use safetensors_core::error::RankProblem;

    let remedy = match error.kind() {
        ErrorKind::Ranks { problem: RankProblem::NoRule } => "--rule 'NAME=replicate', for example",
        ErrorKind::UnevenParts { .. } => {
            "--rule 'NAME=uneven:DIM' allows parts of different length, and 'NAME=replicate' gives \
             each rank the whole"
        }
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}; {remedy}")
}
