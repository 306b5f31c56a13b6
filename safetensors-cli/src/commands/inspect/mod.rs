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
use safetensors_core::audit::FileLayout;
use safetensors_core::checkpoint::CheckpointFile;

use super::Run;
use crate::commands;
use crate::commands::inputs::{Inputs, ShownInput};
use crate::input::other::Kind;
use crate::input::select::Select;
use crate::input::targets::Target;
use crate::input::{self, Checkpoint, Source, Tensor, delta};
use crate::model::order::Sort;
use crate::model::totals::{Parameters, Totals};
use crate::model::tree::Tree;
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Show the modules, tensors, totals, metadata and files of a checkpoint.
///
/// Reads only headers. Names are split into a tree of modules at dots, or at slashes if more names
/// have them. Layers that differ only in their number share rows: 0…31 is 32 layers, and the counts
/// cover all of them. Quantised weights have the bits of an element, and tensors of a type that
/// safetensors lacks have that type, such as Q4_K.
///
/// Of a delta it shows the versions and the changed tensors; of a directory with the epochs of a
/// burn training, their sizes and logged metrics. An epoch that differs from its manifest is named,
/// and the exit code is 1.
///
/// Unprintable characters in names are escaped, and very long names and values shortened. Several
/// PATHs, and --recursive, get one line each, unless --flat, --depth, --sort, --top or --files asks
/// for more.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    /// Show one row per tensor instead of a tree
    #[arg(long)]
    flat: bool,
    /// Show the tree down to this level, with sums of all below; 1 shows the top modules
    #[arg(
        short,
        long,
        value_name = "N",
        conflicts_with_all = ["flat", "json"],
        value_parser = input::integer::<u64>(1..=u64::MAX)
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
        value_parser = input::integer::<u32>(1..=u32::MAX.into())
    )]
    top: Option<u32>,
    /// Show each file, with its header, padding and alignment
    ///
    /// The alignment is the largest power of two, up to 4096, that divides the position of the
    /// data. A tensor that the index maps to another file is counted only here
    #[arg(long, conflicts_with = "json")]
    files: bool,
    #[command(flatten)]
    select: Select,
    /// The order of modules and tensors; by default name, or offset with --flat
    #[arg(short, long, value_name = "ORDER", value_enum)]
    sort: Option<Sort>,
    /// Print everything as one JSON document
    ///
    /// Its keys are index, metadata, total, dtypes, files, tensors and quantized_weights; or
    /// trainings, for a directory with epochs; or delta. Several PATHs have one document, with
    /// theirs in results
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

type File<'a> = (&'a CheckpointFile<Source>, FileLayout);

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

fn show_delta(args: &Args, target: &Target, mut out: &mut dyn Write) -> anyhow::Result<ShownInput> {
    let path = target.path()?;
    let delta = delta::open(path)?;
    if args.json {
        let document = commands::delta::Document::new(path, &delta);
        crate::terminal::json::write(&BTreeMap::from([("delta", document)]), &mut out)?;
    } else {
        commands::delta::write(&delta, out)?;
    }
    Ok(ShownInput::new(Totals::sum(delta.tensors())))
}

/// Shows a delta or trainings, if no checkpoint opened because of them.
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
        args.sort().apply(&mut tensors);
    }
    if args.json {
        let document = json::document(&checkpoint, &tensors, &weights, &parameters, &files);
        crate::terminal::json::write(&document, &mut out)?;
        return Ok(shown);
    }
    if let Some(most) = args.top {
        tensors.truncate(most.try_into()?);
        tables::flat(&checkpoint, &tensors, &mut out)?;
        let Totals { tensors, bytes, .. } = parameters.by_kind(tensors).into_values().sum();
        let all = text::counted(checkpoint.len() as u64, "tensor");
        writeln!(out, "\n{} of {all} shown, {}", text::count(tensors), text::size(bytes))?;
        return Ok(shown);
    }
    if tensors.is_empty() {
        writeln!(out, "no tensors")?;
    } else if args.flat {
        tables::flat(&checkpoint, &tensors, &mut out)?;
    } else {
        let trees = Tree::build(&mut tensors, &parameters, args.sort(), true);
        tables::tree(&trees, args.depth.unwrap_or(u64::MAX), &mut out)?;
    }
    writeln!(out)?;
    tables::totals(&checkpoint, &dtypes, &mut out)?;
    if !weights.is_empty() {
        tables::quantized(&weights, args.flat, &mut out)?;
    }
    tables::labelled(&checkpoint, &tensors, &mut out)?;
    writeln!(out)?;
    tables::metadata(&checkpoint, &mut out)?;
    writeln!(out)?;
    tables::files(&checkpoint, &files, args.files, &mut out)?;
    Ok(shown)
}
