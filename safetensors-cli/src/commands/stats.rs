//! `safetensors stats`: what the values of tensors look like.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::{FileSource, LazyTensor, Result};
use serde::Serialize;

use crate::input;
use crate::moments::{Histogram, Moments};
use crate::progress::Progress;
use crate::select::Select;
use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::{json, parallel, text, values};

/// Show the range, mean and deviation of each tensor's values, and their distribution.
///
/// PATH is a file, an index (*.safetensors.index.json), a directory that holds an
/// index or exactly one file, or - for standard input.
///
/// NaN and infinities are counted, and are no part of the other numbers. The
/// histogram goes from the smallest to the largest value in equal steps. Values are
/// read in pieces, so that tensors larger than memory can be looked at; each part of
/// a complex number counts as a value.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, an index or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    select: Select,
    /// How many steps the histogram has; 0 for none, which is faster
    #[arg(long, value_name = "STEPS", default_value_t = 24, value_parser = clap::value_parser!(u16).range(..=256))]
    bins: u16,
    /// Everything as one JSON document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors stats model.safetensors
  safetensors stats model.safetensors --filter '*.layers.0.*' --bins 60
  safetensors stats --json checkpoint/ | jq '.tensors[] | select(.nan > 0).name'

Exit codes: 0 shown, 1 PATH is malformed or cannot be read, 2 wrong usage.";

/// What there is to say of one tensor.
#[derive(Serialize)]
struct Stats<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    #[serde(flatten)]
    moments: Moments,
    histogram: Option<Histogram>,
}

#[derive(Serialize)]
struct Document<'a> {
    tensors: Vec<Stats<'a>>,
}

/// Looks at the values of one checkpoint.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = input::open(&args.path)?;
    let tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let passes = if args.bins > 0 { 2 } else { 1 };
    let progress = Progress::bytes(passes * tensors.iter().map(LazyTensor::byte_len).sum::<u64>());
    let mut all = Vec::with_capacity(tensors.len());
    let work = |tensor: &LazyTensor<'_, _>| stats(tensor, args.bins.into(), &progress);
    parallel::in_order(&tensors, work, |tensor, result| {
        let (moments, histogram) = result?;
        let dtype = tensor.dtype().name();
        all.push(Stats { name: tensor.name(), dtype, shape: tensor.shape(), moments, histogram });
        Ok::<(), anyhow::Error>(())
    })?;
    drop(progress);
    if args.json {
        json::write(&Document { tensors: all }, out)?;
    } else {
        write_table(&all, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn stats(
    tensor: &LazyTensor<'_, FileSource>,
    bins: usize,
    progress: &Progress,
) -> Result<(Moments, Option<Histogram>)> {
    let mut moments = Moments::default();
    values::for_each(tensor, |values, bytes| {
        moments.add(values);
        progress.add(bytes);
    })?;
    let (Some(min), Some(max), 1..) = (moments.min, moments.max, bins) else { return Ok((moments, None)) };
    let mut histogram = Histogram::new(min, max, bins);
    values::for_each(tensor, |values, bytes| {
        histogram.add(values);
        progress.add(bytes);
    })?;
    Ok((moments, Some(histogram)))
}

fn write_table(all: &[Stats<'_>], out: &mut impl Write) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(writeln!(out, "no tensors")?);
    }
    let columns = [
        ("name", Left),
        ("dtype", Left),
        ("shape", Left),
        ("min", Right),
        ("mean", Right),
        ("max", Right),
        ("std", Right),
        ("zeros", Right),
        ("NaN", Right),
        ("inf", Right),
        ("histogram", Left),
    ];
    let mut table = Table::new(&columns);
    for Stats { name, dtype, shape, moments, histogram } in all {
        let number = |value: Option<f64>| value.map_or_else(|| "–".into(), text::number);
        let count = |count: u64| if count == 0 { "–".into() } else { text::count(count) };
        table.row([
            text::name(name),
            (*dtype).into(),
            text::shape(shape),
            number(moments.min),
            number(moments.mean),
            number(moments.max),
            number(moments.std),
            count(moments.zeros),
            count(moments.nan),
            count(moments.infinite),
            histogram.as_ref().map(Histogram::bars).unwrap_or_default(),
        ]);
    }
    table.write(out)?;
    let not_finite = all.iter().filter(|stats| stats.moments.nan + stats.moments.infinite > 0).count();
    if not_finite > 0 {
        let some = text::counted(not_finite as u64, "tensor");
        writeln!(out, "\n{some} with NaN or infinity")?;
    }
    Ok(())
}
