//! [`Rules`]: the options that divide tensors among ranks; a check of plans.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use safetensors_core::glob::Pattern;
use safetensors_core::ranks::{RankPlan, RankRules};
use safetensors_core::{Error, Limits};

use crate::input::select::{Matcher, Replaced};
use crate::input::{self, Checkpoint};
use crate::model::config::ModelConfig;
use crate::terminal::report::warn;
use crate::terminal::text;

/// The options of every command that divides tensors among ranks.
#[derive(Debug, clap::Args)]
pub(crate) struct Rules {
    /// Divide matching tensors by RULE; the first match counts
    ///
    /// replicate: each rank has the whole tensor. split:DIM: one of N equal parts of dimension DIM.
    /// uneven:DIM: the last parts may be shorter or empty. shared:DIM:PARTS: neighbouring ranks
    /// share one of PARTS parts, such as heads of keys. offsets:DIM:0,...,LEN: rank 0 has the
    /// positions from the first number to the second, and so on. May be repeated
    #[arg(long = "rule", value_name = "GLOB=RULE", value_parser = rule)]
    rules: Vec<Rule>,
    /// Rules for the other tensors, by the names of a kind of model
    ///
    /// By default the names of the tensors determine the kind
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

#[derive(Clone, Debug)]
struct Rule {
    pattern: Pattern,
    rules: RankRules,
}

fn rule(text: &str) -> anyhow::Result<Rule> {
    let rules = RankRules::new().parse_rule(text)?;
    let pattern = text.rsplit_once('=').map_or(text, |(pattern, _)| pattern);
    Ok(Rule { pattern: pattern.parse()?, rules })
}

impl Rules {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.preset.is_none()
    }

    /// The pattern of each rule must match, unless the matcher ignores that.
    pub(crate) fn rules(&self, names: &[&str], matcher: Matcher<'_>) -> anyhow::Result<RankRules> {
        let patterns = self.rules.iter().map(|rule| ("--rule", &rule.pattern));
        matcher.check_others(patterns, names, &Replaced::default())?;
        let given = self.rules.iter().map(|rule| rule.rules.clone());
        let given = given.fold(RankRules::new(), RankRules::then);
        let preset = match self.preset {
            Some(Preset::Llama) => RankRules::llama(),
            Some(Preset::Bert) => RankRules::bert(),
            Some(Preset::None) => RankRules::new(),
            None => RankRules::for_names(names.iter().copied()).unwrap_or_default(),
        };
        Ok(given.then(preset))
    }
}

pub(crate) fn world_size() -> impl Fn(&str) -> Result<usize, String> + Clone {
    input::integer(1..=1 << 20)
}

pub(crate) fn read_plan(path: &Path) -> anyhow::Result<RankPlan> {
    let json = input::read_named(path, Limits::default().index_bytes)?;
    let json = String::from_utf8(json).with_context(|| text::path(path))?;
    json.parse().with_context(|| text::path(path))
}

/// The most ranks that are checked.
const MOST_RANKS: usize = 1024;

/// Warns if a rank gets a part of an attention head, by the first `config.json` next to these
/// checkpoints.
pub(crate) fn warn_of_split_heads<'c>(
    plan: &RankPlan,
    checkpoints: impl IntoIterator<Item = &'c Checkpoint>,
) -> anyhow::Result<()> {
    let mut configs = checkpoints.into_iter().filter_map(|it| ModelConfig::next_to(it).ok()?);
    let Some(config) = configs.next() else { return Ok(()) };
    let mut split: BTreeMap<(usize, u64), Vec<&str>> = BTreeMap::new();
    for tensor in plan.tensors() {
        let module = tensor.name().rsplit('.').nth(1).unwrap_or_default();
        let (dim, heads) = match module {
            "q_proj" | "query" => (0, config.heads()),
            "k_proj" | "v_proj" | "key" | "value" => (0, config.key_value_heads()),
            "o_proj" => (1, config.heads()),
            _ => continue,
        };
        let Some(heads) = heads.filter(|_| tensor.division().dim() == Some(dim)) else { continue };
        let len = tensor.shape().get(dim).map_or(0, |&len| len as u64);
        // Something else than heads has this length.
        let Some(head) = len.checked_div(heads).filter(|head| head * heads == len && len > 0)
        else {
            continue;
        };
        for rank in 0..plan.world_size().min(MOST_RANKS) {
            let part = tensor.part(rank)?.ranges(tensor.shape())?;
            if part.get(dim).is_some_and(|part| !(part.start as u64).is_multiple_of(head)) {
                split.entry((dim, heads)).or_default().push(tensor.name());
                break;
            }
        }
    }
    for ((dim, heads), names) in split {
        let remedy = match plan.world_size() as u64 % heads {
            0 => format!("--rule 'NAME=shared:{dim}:{heads}' has ranks share whole heads"),
            _ => {
                format!("choose a number of ranks that divides {heads}, or --rule 'NAME=replicate'")
            }
        };
        warn(format!(
            "a rank gets a part of a head: {} among {} ranks: {}; {remedy}",
            text::counted(heads, "head"),
            plan.world_size(),
            text::some(names)
        ));
    }
    Ok(())
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
