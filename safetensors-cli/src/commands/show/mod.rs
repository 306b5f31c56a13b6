//! `safetensors show`: the values of a tensor, or of a slice of it.
//!
//! | file | content |
//! |---|---|
//! | `read` | the values, one after another |
//! | `number` | values as text of the same width |
//! | `layout` | the lines and brackets of an array |
//! | `plain` | JSON and CSV |

mod layout;
mod number;
mod plain;
mod read;

use std::io::{self, Write};
use std::process::ExitCode;

use layout::{Layout, ShownDim};
use number::Format;
use plain::{Csv, Json};
use read::{Value, read};
use safetensors_core::framework::Quoted;

use super::Run;
use crate::input::slicing::{Selection, Slice};
use crate::input::values::Values;
use crate::input::{Input, Tensor, find};
use crate::terminal::screen::Screen;
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Show the values of a tensor, or of a slice of it.
///
/// A quantised weight is shown as numbers, by its name in the model; its stored parts, such as
/// scales, by their names.
///
/// Of more than 1000 values, the first and last three of each dimension are shown; --all, --json
/// and --csv show all. Only shown values are read.
///
/// A slice is written as in NumPy: a position or a range for each dimension, with `...` for all
/// others. Negative positions count from the end. A range beyond a dimension ends there. A step is
/// at least 1.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The name of the tensor
    #[arg(value_name = "NAME")]
    name: String,
    /// The part to show, such as '[0:3, -1]'; all of the tensor by default
    #[arg(value_name = "SLICE", value_parser = Slice::parse, allow_hyphen_values = true)]
    slice: Option<Slice>,
    #[command(flatten)]
    values: Values,
    /// Show all values
    ///
    /// Reads them twice, so that a few MiB of memory are enough
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    all: bool,
    /// Print one JSON document: name, dtype, shape and nested arrays of values
    ///
    /// Numbers have all digits; the table has 8 after the point at most. NaN and infinity are the
    /// texts "NaN", "Infinity" and "-Infinity". A complex number is an array of two numbers
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print a line for each row, with commas between the values
    ///
    /// A row is the last dimension. NaN and infinity are NaN, inf and -inf, and a complex number is
    /// 1.0+2.0j
    #[arg(long, hide_short_help = true, help_heading = "More options")]
    csv: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors show model.safetensors embed.weight
  safetensors show model.safetensors embed.weight '[0:3, :5]'
  safetensors show checkpoint/ lm_head.weight '[-1, ::64]'
  safetensors show llama-fp8/ up_proj.weight --stored
  safetensors show model.safetensors scale --json | jq '.values'

Exit codes: 0 shown, 1 there is no such tensor or part, or reading failed, 2 wrong usage.";

/// More values are not all shown, as in NumPy.
const ALL: u128 = 1000;

/// How many positions at each end of a dimension are then shown at most.
const EDGE: usize = 3;

/// The most values that are then shown. Only tensors of very many dimensions have more.
const SHORTENED: u128 = 10_000;

/// The most characters of a line outside a terminal.
const WIDTH: usize = 80;

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let checkpoint = self.values.of_tensor(&self.input, &self.name)?;
        let tensor = find::tensor(&checkpoint, &self.name)?;
        let selection = Selection::new(self.slice.as_ref(), &tensor)?;
        if self.json {
            show_json(&tensor, &selection, out)?;
        } else if self.csv {
            let mut csv = Csv::new(&selection.shape(), out);
            read(&tensor, &selection, &mut |value| csv.value(value))?;
        } else {
            show_text(&tensor, &selection, self.all, out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_json(tensor: &Tensor<'_>, selection: &Selection, out: &mut Out) -> anyhow::Result<()> {
    let shape = selection.shape();
    let name = json::inline(&tensor.name())?;
    writeln!(out, "{{\n  \"name\": {name},\n  \"dtype\": \"{}\",", tensor.dtype())?;
    writeln!(out, "  \"shape\": {},", json::inline(&shape)?)?;
    write!(out, "  \"values\": ")?;
    if selection.len() == 0 {
        write!(out, "[]")?;
    }
    let mut values = Json::new(shape, out);
    read(tensor, selection, &mut |value| values.value(value))?;
    Ok(writeln!(out, "\n}}")?)
}

fn show_text(
    tensor: &Tensor<'_>,
    selection: &Selection,
    all: bool,
    out: &mut Out,
) -> anyhow::Result<()> {
    let (shape, mut format) = (selection.shape(), Format::default());
    let width = Screen::of_stdout().map_or(WIDTH, |screen| screen.columns);
    if all && selection.len() > ALL {
        // Read twice, because the width of the columns depends on all values.
        read(tensor, selection, &mut |value| {
            format.measure(value);
            Ok(())
        })?;
        write_heading(tensor, selection, out)?;
        let mut layout = Layout::new(shown_dims(&shape, usize::MAX), &format, width, out);
        return Ok(read(tensor, selection, &mut |value| layout.value(value))?);
    }
    let dims = match selection.len() {
        ..=ALL => shown_dims(&shape, usize::MAX),
        _ => shortened(&shape).ok_or_else(|| {
            anyhow::anyhow!(
                "tensor {} has too many dimensions to be shown; name a slice of it, such as \
                 '[0, ..., :5]', or show all values with --all, --json or --csv",
                Quoted(tensor.name())
            )
        })?,
    };
    let mut values = Vec::new();
    read_shown(tensor, selection, &dims, &mut |value| {
        values.push(value);
        Ok(())
    })?;
    write_heading(tensor, selection, out)?;
    if values.is_empty() {
        return Ok(writeln!(out, "[]")?);
    }
    values.iter().for_each(|&value| format.measure(value));
    let mut layout = Layout::new(dims, &format, width, out);
    Ok(values.into_iter().try_for_each(|value| layout.value(value))?)
}

fn write_heading(tensor: &Tensor<'_>, selection: &Selection, out: &mut Out) -> anyhow::Result<()> {
    let shape = selection.shape();
    write!(out, "{}  {}  {}", text::name(tensor.name()), tensor.dtype(), text::shape(&shape))?;
    if shape != tensor.shape() {
        write!(out, " of {}", text::shape(tensor.shape()))?;
    }
    Ok(writeln!(out)?)
}

/// Returns the positions to show, with at most `edge` at each end of a dimension.
fn shown_dims(shape: &[usize], edge: usize) -> Vec<ShownDim> {
    let shown = |&len: &usize| match len.checked_sub(edge.saturating_mul(2)) {
        Some(1..) => ShownDim { count: 2 * edge, gap: Some(edge) },
        _ => ShownDim { count: len, gap: None },
    };
    shape.iter().map(shown).collect()
}

/// Returns the positions to show of a large tensor, or `None` if even the ends of each dimension
/// are too many.
fn shortened(shape: &[usize]) -> Option<Vec<ShownDim>> {
    let count = |dims: &[ShownDim]| {
        dims.iter().fold(1, |count, dim| u128::saturating_mul(count, dim.count as u128))
    };
    (1..=EDGE).rev().map(|edge| shown_dims(shape, edge)).find(|dims| count(dims) <= SHORTENED)
}

/// Reads only the values that are shown.
fn read_shown(
    tensor: &Tensor<'_>,
    selection: &Selection,
    dims: &[ShownDim],
    take: &mut dyn FnMut(Value) -> io::Result<()>,
) -> anyhow::Result<()> {
    // The part after the last gap is read at once.
    let Some(last_gap) = dims.iter().rposition(|dim| dim.gap.is_some()) else {
        return Ok(read(tensor, selection, take)?);
    };
    let shape = selection.shape();
    let mut at = vec![0; last_gap];
    loop {
        let narrow = |selection: Selection, (dim, &position): (usize, &usize)| {
            let left_out = match dims[dim].gap {
                Some(gap) if position >= gap => shape[dim] - dims[dim].count,
                _ => 0,
            };
            selection.narrow(dim, position + left_out, 1)
        };
        let row = at.iter().enumerate().fold(selection.clone(), narrow);
        let edge = dims[last_gap].count / 2;
        for start in [0, shape[last_gap] - edge] {
            read(tensor, &row.narrow(last_gap, start, edge), take)?;
        }
        if advance(&mut at, dims[..last_gap].iter().map(|dim| dim.count)) == last_gap {
            return Ok(());
        }
    }
}

/// Moves in C order. Returns how many of the last dimensions begin again: all at the end.
fn advance(
    at: &mut [usize],
    counts: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator,
) -> usize {
    let mut begun = 0;
    for (position, count) in at.iter_mut().zip(counts).rev() {
        if *position + 1 < count {
            *position += 1;
            break;
        }
        *position = 0;
        begun += 1;
    }
    begun
}
