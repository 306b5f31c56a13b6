//! `safetensors stats`: statistics of the values of tensors.
//!
//! | file | content |
//! |---|---|
//! | `gather` | reads tensors once, on several threads |
//! | `moments` | count, extremes, mean and deviation |
//! | `codes`, `counts` | elements as codes, and their counts |
//! | `compact` | the statistics of many tensors, in few bytes |
//! | `distribution` | the values in ascending order; percentiles |
//! | `histogram` | bins of equal width, as numbers and as bars |
//! | `one` | the statistics of a tensor, for `safetensors browse` |

mod codes;
mod compact;
mod counts;
mod distribution;
mod gather;
mod histogram;
mod moments;
mod one;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use compact::CompactSummaries;
use gather::{TensorValues, gather};
use histogram::Histogram;
pub(crate) use histogram::bars;
use moments::Moments;
pub(crate) use one::{Facts, of_tensor};
use safetensors_core::{ErrorKind, LazyTensor};
use serde::{Serialize, Serializer};

use super::Run;
use crate::commands::inputs::{Inputs, ShownInput};
use crate::input::Tensor;
use crate::input::other::{DisplayedTensor, Kind};
use crate::input::select::Select;
use crate::input::targets::Target;
use crate::input::values::Values;
use crate::model::totals::Totals;
use crate::terminal::progress::Progress;
use crate::terminal::report::report;
use crate::terminal::stdout::Out;
use crate::terminal::table::{self, Column, Rows};
use crate::terminal::{json, text};

/// Show the range, percentiles, mean and deviation of each tensor's values, and their distribution.
///
/// NaN and infinities are counted, and excluded from the other numbers. The deviation is the
/// population's. Percentiles are NumPy's: exact for dtypes up to 16 bits and tensors up to 4096
/// elements, otherwise within 0.05 %. The histogram has bins of equal width. `<` and `>` at its
/// ends mark outliers: values further from the middle half of the values than three times its
/// width.
///
/// Reads values once, in pieces, so a tensor may be larger than memory. Each part of a complex
/// number counts as a value. A BOOL tensor with bytes other than 0 and 1 is an error, and so is a
/// PyTorch tensor that cannot be read; the others are still shown. Quantised weights are shown as
/// numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    values: Values,
    /// The percentiles to show: numbers from 0 to 100, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        default_value = "1,50,99",
        value_delimiter = ',',
        value_parser = percent
    )]
    percentiles: Vec<f64>,
    /// The number of bins of the histogram, 256 at most; 0 omits it
    #[arg(
        long,
        value_name = "N",
        default_value_t = 24,
        value_parser = crate::input::integer::<u16>(0..=256)
    )]
    bins: u16,
    /// Print everything as one JSON document
    ///
    /// A tensor has its percentiles by number, and a histogram or null: the ends of the bins (min,
    /// max), their counts, and the number of outliers below and above
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors stats model.safetensors
  safetensors stats model.safetensors --filter '*.layers.0.*' --bins 60
  safetensors stats model.safetensors --percentiles 0.1,25,50,75,99.9
  safetensors stats --json checkpoint/ | jq '.tensors[] | select(.nan > 0).name'

Exit codes: 0 shown, 1 PATH is malformed, unreadable, or has tensors without values, 2 wrong usage.";

fn percent(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 100".into()),
    }
}

#[derive(Serialize)]
struct Stats<'a> {
    name: &'a str,
    dtype: Kind<'a>,
    shape: &'a [usize],
    #[serde(flatten)]
    summary: Summary<'a>,
    /// Why there are no statistics: bytes that are not values of the dtype, or a failed read.
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    moments: Moments,
    percentiles: Percentiles<'a>,
    histogram: Option<Box<Histogram>>,
}

struct Percentiles<'a> {
    asked: &'a [f64],
    /// Empty if there are no finite values.
    found: Box<[f64]>,
}

// Each is made when it is shown: a million of them would take many times the memory of the header.
struct StatsDocument<'a> {
    tensors: &'a [Tensor<'a>],
    kept: CompactSummaries<'a>,
}

impl<'a> Summary<'a> {
    fn new(found: &TensorValues, asked: &'a [f64], bins: u16) -> Self {
        let TensorValues { moments, values } = found;
        let percentiles = asked.iter().filter_map(|&percent| values.percentile(percent));
        Self {
            moments: *moments,
            percentiles: Percentiles { asked, found: percentiles.collect() },
            histogram: Histogram::count(values, bins.into()).map(Box::new),
        }
    }

    fn empty(asked: &'a [f64]) -> Self {
        let percentiles = Percentiles { asked, found: Box::default() };
        Self { moments: Moments::default(), percentiles, histogram: None }
    }
}

impl StatsDocument<'_> {
    fn iter(&self) -> impl Iterator<Item = Stats<'_>> {
        self.tensors.iter().enumerate().map(|(i, tensor)| {
            let shown = DisplayedTensor::new(tensor);
            Stats {
                name: tensor.name(),
                dtype: shown.kind(),
                shape: shown.shape(),
                summary: self.kept.summary(i),
                error: self.kept.error(i),
            }
        })
    }
}

impl Serialize for StatsDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A JSON object, so that `.percentiles["50"]` finds the median.
impl Serialize for Percentiles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.asked.iter().enumerate().map(|(i, asked)| (asked.to_string(), self.found.get(i))),
        )
    }
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let mut percentiles = self.percentiles.clone();
        percentiles.sort_by(f64::total_cmp);
        percentiles.dedup();
        self.inputs.show(self.json, out, |target, out| show(self, &percentiles, target, out))
    }
}

fn show(
    args: &Args,
    percentiles: &[f64],
    target: &Target,
    mut out: &mut dyn Write,
) -> anyhow::Result<ShownInput> {
    let checkpoint =
        args.values.apply(target.open_with(args.values.opening())?, args.select.matcher())?;
    let tensors = args.select.matcher().tensors(&checkpoint)?;
    let progress = Progress::bytes(tensors.iter().map(LazyTensor::byte_len).sum());
    let mut kept = CompactSummaries::new(tensors.len(), percentiles, args.bins);
    let summary = |found: TensorValues| Summary::new(&found, percentiles, args.bins);
    gather(&tensors, &progress, summary, |i, found| {
        match found {
            Ok(summary) => kept.keep(i, &summary),
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidBool { .. })
                    || DisplayedTensor::new(&tensors[i]).is_unread() =>
            {
                kept.fail(i, error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    drop(progress);
    let all = StatsDocument { tensors: &tensors, kept };
    if args.json {
        json::write(&BTreeMap::from([("tensors", &all)]), &mut out)?;
    } else {
        write_table(&all, percentiles, &mut out)?;
        out.flush()?;
        all.kept.errors().for_each(report);
    }
    let failed = all.kept.errors().next().is_some();
    let totals = Totals::of_checkpoint(&checkpoint, tensors.iter().copied());
    Ok(ShownInput::new(totals).sound(!failed))
}

/// A dash if there is none.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), text::number)
}

fn write_table(all: &StatsDocument<'_>, asked: &[f64], out: &mut impl Write) -> anyhow::Result<()> {
    if all.tensors.is_empty() {
        return Ok(writeln!(out, "no tensors")?);
    }
    let titles: Vec<_> = asked.iter().map(|percent| format!("p{percent}")).collect();
    let number = |title, rank| Column::number(title).rank(rank);
    // NaN and infinity are always shown where there are any.
    let (mut nan, mut infinite, mut not_finite, mut is_place) = (6, 8, 0, false);
    let has_bars = all.iter().any(|stats| stats.summary.histogram.is_some());
    for Summary { moments, histogram, .. } in all.iter().map(|stats| stats.summary) {
        nan = if moments.nan > 0 { 0 } else { nan };
        infinite = if moments.infinite > 0 { 0 } else { infinite };
        not_finite += u64::from(moments.nan + moments.infinite > 0);
        // Outliers below take a place before the bars of every row, so that bins stay below each
        // other.
        is_place |= histogram.is_some_and(|histogram| histogram.below > 0);
    }
    let mut columns = vec![
        Column::name("name").rank(0).distinct(),
        Column::word("dtype").rank(9),
        Column::word("shape").rank(10),
        number("min", 3),
    ];
    columns.extend(titles.iter().map(|title| number(title.as_str(), 5)));
    columns.extend([number("max", 4), number("mean", 1), number("std", 2), number("zeros", 7)]);
    columns.extend([number("NaN", nan), number("inf", infinite)]);
    columns.extend(has_bars.then(|| Column::word("histogram").rank(11)));
    let row = |stats: &Stats<'_>, rows: &mut Rows<'_>| {
        let Summary { moments, percentiles, histogram } = &stats.summary;
        let count = |count: u64| if count == 0 { "–".into() } else { text::count(count) };
        let mut cells = vec![
            text::name(stats.name),
            stats.dtype.to_string(),
            stats.dtype.shape_text(stats.shape),
            shown(moments.min),
        ];
        cells.extend((0..asked.len()).map(|i| shown(percentiles.found.get(i).copied())));
        cells.extend([moments.max, moments.mean, moments.std].map(shown));
        cells.extend([moments.zeros, moments.nan, moments.infinite].map(count));
        let bars = histogram.as_ref().map(|it| it.bars(is_place));
        cells.extend(has_bars.then(|| bars.unwrap_or_default()));
        rows.row(cells);
    };
    table::write(&columns, out, |rows| all.iter().for_each(|stats| row(&stats, rows)))?;
    if not_finite > 0 {
        let some = text::counted(not_finite, "tensor");
        writeln!(out, "\n{some} with NaN or infinity")?;
    }
    Ok(())
}
