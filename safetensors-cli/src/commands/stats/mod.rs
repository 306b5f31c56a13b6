//! `safetensors stats`: statistics of the values of tensors.
//!
//! | file | content |
//! |---|---|
//! | `moments` | count, extremes, mean and deviation |
//! | `histogram` | counts of values by range, as numbers and as bars |

mod histogram;
mod moments;

use std::io::Write;
use std::process::ExitCode;

use histogram::Histogram;
use moments::Moments;
use safetensors_core::load::Piece;
use safetensors_core::{Error, ErrorKind, LazyTensor};
use serde::Serialize;

use crate::input::{Input, Source, Tensor};
use crate::progress::Progress;
use crate::report::report;
use crate::select::Select;
use crate::table::Align::{Left, Right};
use crate::table::{self, Rows};
use crate::{json, parallel, text, values};

/// Show the range, mean and deviation of each tensor's values, and their distribution.
///
/// NaN and infinities are counted, and left out of the other numbers. The
/// histogram goes from the smallest to the largest value in bins of equal width.
/// Values are read in pieces, so a tensor may be larger than memory. Each part of
/// a complex number counts as a value. A BOOL tensor with bytes other than 0 and 1
/// is an error; the other tensors are still shown.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    select: Select,
    /// The number of bins of the histogram, 256 at most; 0 leaves it out, which is faster
    #[arg(
        long,
        value_name = "N",
        default_value_t = 24,
        value_parser = clap::value_parser!(u16).range(..=256)
    )]
    bins: u16,
    /// Print everything as one JSON document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors stats model.safetensors
  safetensors stats model.safetensors --filter '*.layers.0.*' --bins 60
  safetensors stats --json checkpoint/ | jq '.tensors[] | select(.nan > 0).name'

Exit codes: 0 shown, 1 PATH is malformed, unreadable, or has invalid BOOL values, 2 wrong usage.";

/// The statistics of one tensor.
#[derive(Serialize)]
struct Stats<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    #[serde(flatten)]
    moments: Moments,
    histogram: Option<Box<Histogram>>,
    /// Why there are no statistics: the tensor has bytes that are not values of its dtype.
    error: Option<String>,
}

/// The bytes of tensors that make a batch. A batch is read once for the moments and once for the
/// histograms.
///
/// It is large enough for small tensors to keep all threads busy. It is small enough for the system
/// to still have it in memory the second time.
const BATCH: u64 = 256 << 20;

/// The most tensors that make a batch, however small they are. Each has several histograms meanwhile.
const BATCH_TENSORS: usize = 4096;

#[derive(Serialize)]
struct Document<'s, 'a> {
    tensors: &'s [Stats<'a>],
}

impl<'a> Stats<'a> {
    /// Statistics that are still empty.
    fn new(tensor: &Tensor<'a>) -> Self {
        let (name, dtype, shape) = (tensor.name(), tensor.dtype().name(), tensor.shape());
        Self { name, dtype, shape, moments: Moments::default(), histogram: None, error: None }
    }
}

/// Shows statistics of the values of one checkpoint.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = args.input.open()?;
    let tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let passes = if args.bins > 0 { 2 } else { 1 };
    let progress = Progress::bytes(passes * tensors.iter().map(LazyTensor::byte_len).sum::<u64>());
    let mut all: Vec<_> = tensors.iter().map(Stats::new).collect();
    let mut rest = (tensors.as_slice(), all.as_mut_slice());
    while !rest.0.is_empty() {
        let (batch, tensors) = rest.0.split_at(batch_len(rest.0));
        let (stats, more) = rest.1.split_at_mut(batch.len());
        look(batch, stats, args.bins.into(), &progress)?;
        rest = (tensors, more);
    }
    drop(progress);
    if args.json {
        json::write(&Document { tensors: &all }, out)?;
    } else {
        write_table(&all, out)?;
        out.flush()?;
        all.iter().filter_map(|stats| stats.error.as_ref()).for_each(report);
    }
    let failed = all.iter().any(|stats| stats.error.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The number of tensors in the next batch; at least one.
fn batch_len(tensors: &[Tensor<'_>]) -> usize {
    let mut bytes = 0_u64;
    let fits = |tensor: &&Tensor<'_>| {
        let is_room = bytes < BATCH;
        bytes = bytes.saturating_add(tensor.byte_len());
        is_room
    };
    tensors.iter().take(BATCH_TENSORS).take_while(fits).count()
}

/// Fills in the statistics of a batch.
fn look(
    tensors: &[Tensor<'_>],
    stats: &mut [Stats<'_>],
    bins: usize,
    progress: &Progress,
) -> anyhow::Result<()> {
    let moments = |_, values: &[f64]| {
        let mut moments = Moments::default();
        moments.add(values);
        moments
    };
    for_each_piece(tensors, progress, moments, |i, found| {
        match found {
            Ok(found) => stats[i].moments.merge(&found),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidBool { .. }) => {
                stats[i].error.get_or_insert_with(|| error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    for stats in stats.iter_mut() {
        if stats.error.is_some() {
            stats.moments = Moments::default();
        }
        let range = stats.moments.min.zip(stats.moments.max).filter(|_| bins > 0);
        stats.histogram = range.map(|(min, max)| Histogram::new(min, max, bins).into());
    }
    if bins == 0 {
        return Ok(());
    }
    let empty: Vec<_> = stats.iter().map(|stats| stats.histogram.clone()).collect();
    let histogram = |i: usize, values: &[f64]| {
        let mut histogram: Option<Box<Histogram>> = empty[i].clone();
        histogram.iter_mut().for_each(|histogram| histogram.add(values));
        histogram
    };
    for_each_piece(tensors, progress, histogram, |i, found| {
        // A tensor with invalid values has no histogram. The first pass has recorded its error.
        if let Some(histogram) = &mut stats[i].histogram {
            found?.iter().for_each(|found| histogram.merge(found));
        }
        Ok(())
    })
}

/// Calls `look` on the values of each piece of each tensor, on several threads: they share a large
/// tensor. Calls `take` on the results in order, with the index of the tensor.
fn for_each_piece<R: Send>(
    tensors: &[Tensor<'_>],
    progress: &Progress,
    look: impl Fn(usize, &[f64]) -> R + Sync,
    mut take: impl FnMut(usize, Result<R, Error>) -> Result<(), Error>,
) -> anyhow::Result<()> {
    let pieces = tensors
        .iter()
        .enumerate()
        .flat_map(|(i, tensor)| tensor.pieces().map(move |piece| (i, piece)));
    let work = |(i, piece): &(usize, Piece<'_, Source>)| {
        let values = values::of(piece);
        progress.add(piece.byte_len());
        values.map(|values| look(*i, &values))
    };
    Ok(parallel::in_order(pieces, work, |(i, _), found| take(i, found))?)
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
    let row = |stats: &Stats<'_>, rows: &mut Rows<'_>| {
        let Stats { name, dtype, shape, moments, histogram, .. } = stats;
        let number = |value: Option<f64>| value.map_or_else(|| "–".into(), text::number);
        let count = |count: u64| if count == 0 { "–".into() } else { text::count(count) };
        rows.row([
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
            histogram.as_ref().map(|histogram| histogram.bars()).unwrap_or_default(),
        ]);
    };
    table::write(&columns, out, |rows| all.iter().for_each(|stats| row(stats, rows)))?;
    let not_finite =
        all.iter().filter(|stats| stats.moments.nan + stats.moments.infinite > 0).count();
    if not_finite > 0 {
        let some = text::counted(not_finite as u64, "tensor");
        writeln!(out, "\n{some} with NaN or infinity")?;
    }
    Ok(())
}
