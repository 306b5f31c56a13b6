//! `safetensors plan`: which part of a checkpoint each rank holds.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::ranks::{RankPlan, RankTensor};
use serde::Serialize;

use super::Run;
use crate::input::Input;
use crate::input::select::Matcher;
use crate::model::ranks::{Rules, advise, read_plan, warn_of_split_heads, world_size};
use crate::output::writing::Writing;
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;
use crate::terminal::table::{Column, Columns};
use crate::terminal::{json, table, text};

/// Show which part of each tensor each rank of a job holds, and how many bytes that is.
///
/// Rules divide tensors by their names. There are presets for models like Llama and BERT; a tensor
/// that no rule matches is an error. Reads only headers, and the config.json next to them: a
/// warning names tensors that give a rank a part of an attention head.
///
/// A saved plan (-o) divides a model in the same way later: with --from, by `convert --plan`, or in
/// a program that uses safetensors-core.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The number of ranks
    #[arg(
        short,
        long,
        value_name = "N",
        required_unless_present = "from",
        value_parser = world_size()
    )]
    world_size: Option<usize>,
    #[command(flatten)]
    rules: Rules,
    /// Allow rules that match no tensor, which is otherwise an error
    #[arg(long)]
    ignore_unmatched: bool,
    /// Take the plan from this file instead, and compare it with PATH
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["world_size", "rules", "preset"],
        value_parser = crate::input::address::parser()
    )]
    from: Option<PathBuf>,
    /// Save the plan to this file, or - for standard output
    ///
    /// With -, nothing else is shown
    #[arg(short, long, value_name = "FILE", value_parser = crate::input::address::parser())]
    output: Option<PathBuf>,
    /// Show every tensor instead of the sums
    #[arg(long)]
    flat: bool,
    /// Print one JSON document
    ///
    /// Its keys are world_size, total_size (bytes of the whole tensors), read (bytes that all ranks
    /// read), ranks and tensors
    #[arg(long, conflicts_with = "flat")]
    json: bool,
    #[command(flatten)]
    writing: Writing,
}

const EXAMPLES: &str = "\
Examples:
  safetensors plan llama/ --world-size 4
  safetensors plan llama/ -w 8 --rule '*.k_proj.weight=shared:0:4'
  safetensors plan model.safetensors -w 2 --preset none --rule '*=split:0'
  safetensors plan llama/ --world-size 4 -o plan.json
  safetensors plan llama/ --from plan.json --json | jq '.ranks[0].bytes'

Exit codes: 0 shown, 1 the tensors cannot be divided so, or a file cannot be read,
2 wrong usage.";

impl Run for Args {
    fn is_paged(&self) -> bool {
        self.output.is_none()
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if self.json && self.output.as_deref() == Some(Path::new("-")) {
            return Err(wrong_usage("--json and -o - both write to standard output"));
        }
        let checkpoint = self.input.open()?;
        let output = self.output.as_deref();
        let destination = output.map(|path| self.writing.output(path, &checkpoint)).transpose()?;
        let plan = match (&self.from, self.world_size) {
            (Some(from), _) => {
                let plan = read_plan(from)?;
                let found = checkpoint.tensors();
                plan.check_tensors(found.map(|it| (it.name(), it.dtype(), it.shape())))?;
                plan
            }
            (None, Some(ranks)) => {
                let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
                let rules = self.rules.rules(&names, Matcher::everything(self.ignore_unmatched));
                let rules = rules.with_context(|| self.input.name())?;
                rules.plan(&checkpoint, ranks).map_err(advise)?
            }
            (None, None) => return Err(wrong_usage("--world-size is missing")),
        };
        warn_of_split_heads(&plan, [&checkpoint])?;
        let tensors = text::counted(checkpoint.len() as u64, "tensor");
        let content = format!("{tensors}, for {}", text::counted(plan.world_size() as u64, "rank"));
        let mut written = None;
        if let Some(destination) = destination {
            let json = plan.to_json();
            let Some(destination) = destination else {
                out.write_all(json.as_bytes())?;
                return Ok(ExitCode::SUCCESS);
            };
            if destination.is_dry_run(out, &content)? {
                return Ok(ExitCode::SUCCESS);
            }
            destination.write(0, |out| Ok(out.write_all(json.as_bytes())?))?;
            written = Some(destination);
        }
        if self.json {
            json::write(&Document::new(&plan)?, out)?;
        } else if self.flat {
            flat(&plan, out)?;
        } else {
            sums(&plan, out)?;
        }
        if let Some(written) = written.filter(|_| !self.json) {
            written.tell(out, content)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn held<'t>(tensors: impl IntoIterator<Item = &'t RankTensor>) -> anyhow::Result<String> {
    let mut least = 0;
    let mut most = 0;
    for tensor in tensors {
        let lens = tensor.byte_lens()?;
        least += lens.iter().map(|(_, bytes)| *bytes).min().unwrap_or_default();
        most += lens.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
    }
    Ok(match least == most {
        true => text::size(most),
        false => format!("{} to {}", text::size(least), text::size(most)),
    })
}

fn sums(plan: &RankPlan, out: &mut impl Write) -> anyhow::Result<()> {
    let mut kinds: BTreeMap<String, Vec<&RankTensor>> = BTreeMap::new();
    for tensor in plan.tensors() {
        kinds.entry(shown(tensor)).or_default().push(tensor);
    }
    let mut rows = Vec::new();
    for (kind, tensors) in &kinds {
        let count = text::count(tensors.len() as u64);
        let whole: u64 = tensors.iter().map(|tensor| whole_len(tensor)).sum();
        rows.push([kind.clone(), count, text::size(whole), held(tensors.iter().copied())?]);
    }
    let columns = [
        Column::name("division"),
        Column::number("tensors"),
        Column::number("size"),
        Column::number("each rank holds"),
    ];
    table::write(&columns, out, |table| rows.iter().for_each(|row| table.row(row)))?;
    writeln!(out)?;

    let lens = plan.byte_lens()?;
    let columns = [Column::name("rank"), Column::number("bytes"), Column::number("size")];
    table::write(&columns, out, |table| {
        let mut first = 0;
        for alike in lens.chunk_by(u64::eq) {
            let last = first + alike.len() - 1;
            let rank = if first == last { first.to_string() } else { format!("{first}…{last}") };
            table.row([rank, text::count(alike[0]), text::size(alike[0])]);
            first = last + 1;
        }
        let read = sum(&lens);
        table.row(["all".into(), text::count(read), text::size(read)]);
    })?;
    let total = plan.total_size();
    writeln!(out, "\nthe whole tensors have {} bytes, {}", text::count(total), text::size(total))?;
    Ok(())
}

/// Returns the bytes that all ranks read together.
fn sum(lens: &[u64]) -> u128 {
    lens.iter().map(|&bytes| u128::from(bytes)).sum()
}

/// Displays a division without its offsets, which may be many.
fn shown(tensor: &RankTensor) -> String {
    let text = tensor.division().to_string();
    match text.strip_prefix("offsets:").and_then(|rest| rest.split_once(':')) {
        Some((dim, _)) => format!("offsets:{dim}"),
        None => text,
    }
}

fn whole_len(tensor: &RankTensor) -> u64 {
    safetensors_core::shape::byte_len(tensor.dtype(), tensor.shape()).unwrap_or(0)
}

fn flat(plan: &RankPlan, out: &mut impl Write) -> anyhow::Result<()> {
    let held = plan.tensors().map(|tensor| held([tensor])).collect::<anyhow::Result<Vec<_>>>()?;
    let columns: &Columns<'_, (&RankTensor, &String)> = &[
        (Column::name("name").rank(0).distinct(), &|(tensor, _)| text::name(tensor.name())),
        (Column::word("dtype").rank(3), &|(tensor, _)| tensor.dtype().to_string()),
        (Column::name("shape").rank(4), &|(tensor, _)| text::shape(tensor.shape())),
        (Column::word("division").rank(1), &|(tensor, _)| shown(tensor)),
        (Column::number("each rank holds").rank(2), &|(_, held)| (*held).clone()),
    ];
    Ok(table::list(plan.tensors().zip(&held), columns, out)?)
}

#[derive(Serialize)]
struct Document<'p> {
    world_size: usize,
    /// The bytes of the whole tensors.
    total_size: u64,
    /// The bytes that all ranks read together.
    read: u128,
    ranks: Vec<RankDocument>,
    tensors: Vec<TensorDocument<'p>>,
}

#[derive(Serialize)]
struct RankDocument {
    rank: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorDocument<'p> {
    name: &'p str,
    dtype: &'static str,
    shape: &'p [usize],
    division: String,
    bytes: u64,
}

impl<'p> Document<'p> {
    fn new(plan: &'p RankPlan) -> anyhow::Result<Self> {
        let lens = plan.byte_lens()?;
        let ranks = lens.iter().enumerate().map(|(rank, &bytes)| RankDocument { rank, bytes });
        let tensors = plan.tensors().map(|tensor| TensorDocument {
            name: tensor.name(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            division: tensor.division().to_string(),
            bytes: whole_len(tensor),
        });
        Ok(Self {
            world_size: plan.world_size(),
            total_size: plan.total_size(),
            read: sum(&lens),
            ranks: ranks.collect(),
            tensors: tensors.collect(),
        })
    }
}
