//! `safetensors inspect`: shows the content of a file or checkpoint.
//!
//! | file | content |
//! |---|---|
//! | `tables` | the output for people |
//! | `json` | the output for programs |
//! | `training` | the epochs of a training of burn |

mod json;
mod tables;
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::process::ExitCode;

use safetensors_core::Error;

use super::Run;
use crate::commands;
use crate::commands::inputs::{Inputs, ShownInput};
use crate::input::other::Kind;
use crate::input::select::Select;
use crate::input::targets::Target;
use crate::input::{self, Checkpoint, Tensor, delta};
use crate::model::order::Sort;
use crate::model::totals::{Parameters, Totals};
use crate::model::tree::Tree;
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Show the modules, tensors, totals, metadata and files of a checkpoint.
///
/// Only headers are read, and what describes quantised weights, of which the bits that an element
/// takes are shown. Tensors are shown as a tree of modules. Layers that differ only in their
/// number share rows: 0…31 stands for 32 layers, and the counts in its rows are those of all 32.
/// --flat lists each tensor. Of a delta, which is no checkpoint, the versions and the changed tensors
/// are shown. Of a directory with the epochs of a training of burn, the epochs are
/// shown, with their sizes and the metrics that burn has logged. Unprintable characters in names
/// are escaped. Very long names and values are shortened.
///
/// Several PATHs, and --recursive, show one line for each, unless --flat, --depth, --sort, --top or
/// --files asks for more.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// Show one row per tensor instead of a tree
    #[arg(long)]
    flat: bool,
    /// Show the tree only down to this level; 1 shows the top modules
    ///
    /// The counts of a module are those of all that is in it
    #[arg(
        short,
        long,
        value_name = "N",
        conflicts_with_all = ["flat", "json"],
        value_parser = input::whole::<u64>(1..=u64::MAX)
    )]
    depth: Option<u64>,
    /// Show one line: tensors, parameters, size, and how they are stored
    #[arg(long, conflicts_with_all = ["flat", "depth", "sort", "top", "files", "json"])]
    summary: bool,
    /// Show only the N largest tensors, or the first N in the order of --sort
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["depth", "json"],
        value_parser = input::whole::<u32>(1..=u32::MAX.into())
    )]
    top: Option<u32>,
    /// Show each file, with its header, padding and alignment
    #[arg(long, conflicts_with = "json")]
    files: bool,
    #[command(flatten)]
    select: Select,
    /// The order of modules and tensors; by default name for a tree, offset with --flat
    #[arg(short, long, value_name = "ORDER", value_enum)]
    sort: Option<Sort>,
    /// Print everything as one JSON document
    ///
    /// Its keys are index, metadata, total, dtypes, files, tensors and quantized_weights; or
    /// trainings, of a directory with epochs; or delta, of one. Several PATHs have one document around theirs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors inspect model.safetensors
  safetensors inspect path/to/checkpoint/ --sort size --depth 2
  safetensors inspect model.safetensors --flat --filter '*.attention.*'
  safetensors inspect model.safetensors --json | jq '.tensors[].name'
  safetensors inspect model.safetensors --top 10
  safetensors inspect *.safetensors
  safetensors inspect --recursive models/ | cut -f 1,3
  safetensors inspect run/

Exit codes: 0 shown, 1 PATH is malformed or cannot be read, 2 wrong usage.";

type Tensors<'a> = [Tensor<'a>];

/// The sums for each dtype, and for each type of another format.
type Dtypes<'a> = BTreeMap<Kind<'a>, Totals>;

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if self.is_summary() {
            return self.inputs.tabulate("stored as", out, |target| summary(self, target));
        }
        self.inputs.show(self.json, out, |target, out| show(self, target, out))
    }
}

impl Args {
    /// Returns `true` if each input is one line.
    fn is_summary(&self) -> bool {
        let is_more = self.flat || self.json || self.files || self.sort.is_some();
        let is_more = is_more || self.depth.is_some() || self.top.is_some();
        self.summary || self.inputs.is_many() && !is_more
    }

    fn sort(&self) -> Sort {
        self.sort.unwrap_or(match (self.top, self.flat || self.json) {
            (Some(_), _) => Sort::Size,
            (None, true) => Sort::Offset,
            (None, false) => Sort::Name,
        })
    }
}

/// Sums up one input, with the schemes and dtypes of a checkpoint.
fn summary(args: &Args, target: &Target) -> anyhow::Result<(ShownInput, String)> {
    let checkpoint = match target.open() {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            return Ok((show_other(args, target, &mut io::sink(), error)?, String::new()));
        }
    };
    let tensors = args.select.matcher().tensors(&checkpoint)?;
    let weights = input::quantized_weights(&checkpoint);
    let parameters = Parameters::new(&weights);
    let all = parameters.by_kind(tensors.iter().copied()).into_values().sum();
    let plain = tensors.iter().filter(|tensor| !parameters.is_quantised(tensor.name()));
    let plain = parameters.by_kind(plain.copied());
    let schemes: BTreeSet<_> = weights.iter().map(|weight| weight.scheme).collect();
    let stored: Vec<_> = schemes.into_iter().chain(plain.keys().map(|kind| kind.name())).collect();
    Ok((ShownInput::new(all), stored.join(", ")))
}

/// Shows the epochs of the trainings in a directory that is no checkpoint; `None` if there are
/// none.
fn trainings(
    args: &Args,
    target: &Target,
    mut out: &mut dyn Write,
) -> Option<anyhow::Result<ShownInput>> {
    let directory = target.path().ok().filter(|path| path.is_dir())?;
    let trainings = training::find(directory);
    let shown = trainings.iter().map(training::Training::shown).reduce(ShownInput::with)?;
    let written = if args.json {
        crate::terminal::json::write(&BTreeMap::from([("trainings", &trainings)]), &mut out)
    } else {
        trainings.iter().enumerate().try_for_each(|(i, training)| {
            if i > 0 {
                writeln!(out)?;
            }
            training.write(out)
        })
    };
    Some(written.map(|()| shown))
}

/// Shows a delta, which is no checkpoint.
fn show_delta(args: &Args, target: &Target, mut out: &mut dyn Write) -> anyhow::Result<ShownInput> {
    let path = target.path()?;
    let delta = delta::open(path)?;
    if args.json {
        let document = commands::delta::Document::of(path, &delta);
        crate::terminal::json::write(&BTreeMap::from([("delta", document)]), &mut out)?;
    } else {
        commands::delta::write(&delta, out)?;
    }
    Ok(ShownInput::new(Totals::of(delta.tensors())))
}

/// Shows a delta or the epochs of trainings, if that is why no checkpoint has opened.
fn show_other(
    args: &Args,
    target: &Target,
    out: &mut dyn Write,
    error: anyhow::Error,
) -> anyhow::Result<ShownInput> {
    if delta::is_delta(&error) {
        return show_delta(args, target, out);
    }
    trainings(args, target, out).unwrap_or(Err(error))
}

/// Shows one checkpoint.
fn show(args: &Args, target: &Target, mut out: &mut dyn Write) -> anyhow::Result<ShownInput> {
    let checkpoint = match target.open() {
        Ok(checkpoint) => checkpoint,
        Err(error) => return show_other(args, target, out, error),
    };
    let mut tensors = args.select.matcher().tensors(&checkpoint)?;
    let parts = target.parts(&checkpoint)?;
    let files = Target::stored(&checkpoint, &parts).iter().flat_map(Checkpoint::files);
    let files = files.map(|file| Ok((file, file.layout()?))).collect::<Result<Vec<_>, Error>>()?;
    let weights = input::quantized_weights(&checkpoint);
    let parameters = Parameters::new(&weights);
    let dtypes = parameters.by_kind(tensors.iter().copied());
    let shown = ShownInput::new(dtypes.values().copied().sum());
    if args.json || args.flat || args.top.is_some() {
        args.sort().apply_to_tensors(&mut tensors);
    }
    if args.json {
        let document = json::document(&checkpoint, &tensors, &weights, &parameters, &files);
        crate::terminal::json::write(&document, &mut out)?;
        return Ok(shown);
    }
    if let Some(most) = args.top {
        tensors.truncate(most.try_into()?);
        tables::flat(&checkpoint, &tensors, &mut out)?;
        let bytes = parameters.by_kind(tensors.iter().copied()).into_values().sum::<Totals>().bytes;
        let all = text::counted(checkpoint.len() as u64, "tensor");
        let count = text::count(tensors.len() as u64);
        writeln!(out, "\n{count} of {all} shown, {}", text::size(bytes))?;
        return Ok(shown);
    }
    if tensors.is_empty() {
        writeln!(out, "no tensors")?;
    } else if args.flat {
        tables::flat(&checkpoint, &tensors, &mut out)?;
    } else {
        let trees = Tree::folded(&mut tensors, &parameters, args.sort());
        tables::tree(&trees, args.depth.unwrap_or(u64::MAX), &mut out)?;
    }
    writeln!(out)?;
    tables::totals(&checkpoint, &dtypes, &mut out)?;
    if !weights.is_empty() {
        writeln!(out)?;
        tables::quantized(&weights, args.flat, &mut out)?;
    }
    tables::labelled(&checkpoint, &tensors, &mut out)?;
    writeln!(out)?;
    tables::metadata(&checkpoint, &mut out)?;
    writeln!(out)?;
    tables::files(&checkpoint, &files, args.files, &mut out)?;
    Ok(shown)
}
