//! `safetensors diff`: compares two checkpoints.
//!
//! | file | content |
//! |---|---|
//! | `compare` | the differences between two tensors, piece by piece |
//! | `distance` | how far pairs of numbers are apart |
//! | `tolerance` | how far apart they may be and still count as equal |

mod compare;
mod distance;
mod tolerance;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use compare::{Buffers, Difference};
use safetensors_core::Metadata;
use safetensors_core::framework::in_order;
use safetensors_core::load::Piece;
use serde::Serialize;
use tolerance::Tolerance;

use super::Run;
use crate::input;
use crate::input::other::{self, Kind};
use crate::input::select::Select;
use crate::input::values::Values;
use crate::input::{Checkpoint, Source, Tensor};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::table::Align::Left;
use crate::terminal::table::Column;
use crate::terminal::{json, table, text};

/// Compare two checkpoints: names, dtypes, shapes, values and metadata.
///
/// How a checkpoint is split into files makes no difference.
///
/// Tensors of the same shape are compared value by value, even if their dtypes
/// differ. Values of the same dtype are equal if their bits are equal. With a
/// tolerance, which may be 0, they are compared as numbers: 0 equals -0, and NaN
/// equals NaN. Values are read in pieces, so a tensor may be larger than memory. One of
/// PyTorch that cannot be read counts as unequal, and the others are still compared.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file, an index, a directory, an address (feature remote), or - for standard input
    ///
    /// An index is a file such as model.safetensors.index.json. A directory must hold
    /// model.safetensors, or else an index, or else exactly one .safetensors file, or else exactly
    /// one of PyTorch, GGUF or NumPy. These are read, too. An address is hf://owner/name, s3://bucket/model
    /// (gs, az), https://host/model.safetensors
    #[arg(value_name = "A", value_parser = crate::input::address::parser())]
    a: PathBuf,
    /// The same, to compare with A; only one of both can be standard input
    #[arg(value_name = "B", value_parser = crate::input::address::parser())]
    b: PathBuf,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    values: Values,
    #[command(flatten)]
    tolerance: Tolerance,
    /// Treat tensors of different dtypes as equal if their values are equal
    #[arg(long)]
    ignore_dtype: bool,
    /// Do not compare metadata
    #[arg(long)]
    ignore_metadata: bool,
    /// Print everything as one JSON document
    ///
    /// The values of a tensor have their number (of), the number that differ (values), and the
    /// number that differ only in their bits (other_bits). JSON has no infinity: max_absolute and
    /// max_relative are null if NaN or infinity is compared with another value
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors diff before.safetensors after.safetensors
  safetensors diff model.safetensors shards/ --ignore-metadata && echo equal
  safetensors diff before.safetensors after.safetensors --tolerance 0
  safetensors diff f32/ bf16/ --ignore-dtype --relative-tolerance 0.004

Exit codes: 0 equal, 1 different, or a path is malformed or cannot be read, 2 wrong usage.";

/// A name, and each side's tensor of that name.
type Pair<'a> = (&'a str, Option<Tensor<'a>>, Option<Tensor<'a>>);

/// A tensor that differs, with its dtype and shape on each side.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    a: Option<Side<'a>>,
    b: Option<Side<'a>>,
    /// `None` unless both sides have the tensor in the same shape, and it can be read.
    values: Option<Difference>,
    /// Why the values of a side cannot be read.
    error: Option<String>,
}

#[derive(PartialEq, Serialize)]
struct Side<'a> {
    dtype: Kind<'a>,
    shape: &'a [usize],
}

/// A metadata entry that differs, with each side's value.
#[derive(Serialize)]
struct MetadataEntry<'a> {
    key: &'a str,
    a: Option<&'a str>,
    b: Option<&'a str>,
}

#[derive(Serialize)]
struct Document<'a> {
    equal: bool,
    equal_tensors: u64,
    tensors: Vec<Entry<'a>>,
    metadata: Vec<MetadataEntry<'a>>,
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if input::is_stdin(&self.a) && input::is_stdin(&self.b) {
            return Err(wrong_usage("A and B cannot both be standard input"));
        }
        let open = |path| self.values.of(input::open(path)?, Select::default().matcher());
        let (a, b) = (open(&self.a)?, open(&self.b)?);
        let document = compare(self, &a, &b)?;
        if self.json {
            json::write(&document, out)?;
        } else {
            document.show(out)?;
            out.flush()?;
            document.tensors.iter().filter_map(|entry| entry.error.as_ref()).for_each(report);
        }
        Ok(if document.equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn compare<'a>(args: &Args, a: &'a Checkpoint, b: &'a Checkpoint) -> anyhow::Result<Document<'a>> {
    let matcher = args.select.matcher();
    let both = a.tensors().chain(b.tensors());
    matcher.check(&both.map(|tensor| tensor.name()).collect::<Vec<_>>())?;
    let taken = [matcher.of(a), matcher.of(b)].into_iter().flatten();
    let names: BTreeSet<&str> = taken.map(|tensor| tensor.name()).collect();
    let pairs: Vec<Pair<'a>> =
        names.into_iter().map(|name| (name, a.get(name), b.get(name))).collect();
    let bytes = pairs.iter().filter_map(comparable).map(|(a, b)| a.byte_len() + b.byte_len());
    let progress = Progress::bytes(bytes.sum());
    let (mut tensors, mut equal_tensors) = (Vec::new(), 0);
    let mut differences: Vec<_> =
        pairs.iter().map(|pair| comparable(pair).map(|_| Difference::default())).collect();
    // A large tensor is shared by several threads.
    let pieces = pairs.iter().enumerate().flat_map(|(i, pair)| {
        let both = comparable(pair).into_iter().flat_map(|(a, b)| a.pieces().zip(b.pieces()));
        both.map(move |(a, b)| (i, a, b))
    });
    type Both<'a> = (usize, Piece<'a, Source>, Piece<'a, Source>);
    let work = |(_, a, b): &Both<'a>, buffers: &mut Buffers| {
        let difference = Difference::of(a, b, args.tolerance, buffers);
        progress.add(a.byte_len() + b.byte_len());
        difference
    };
    in_order(pieces, 0, work, |(i, ..), found| -> anyhow::Result<()> {
        let found = found?;
        differences[i].iter_mut().for_each(|difference| difference.merge(&found));
        Ok(())
    })?;
    drop(progress);
    for (&(name, a, b), values) in pairs.iter().zip(differences) {
        let error = [a, b].iter().flatten().find_map(other::why_unread);
        let side = |tensor: Option<Tensor<'a>>| {
            tensor.map(|tensor| {
                let shape = other::shape(tensor.info(), other::stored(&tensor));
                Side { dtype: other::kind(&tensor), shape }
            })
        };
        let (a, b) = (side(a), side(b));
        let same_values = values.is_some_and(|values| values.is_none());
        let same_dtype = a.as_ref().map(|a| a.dtype) == b.as_ref().map(|b| b.dtype);
        if same_values && (same_dtype || args.ignore_dtype) {
            equal_tensors += 1;
        } else {
            tensors.push(Entry { name, a, b, values, error });
        }
    }
    let metadata = if args.ignore_metadata {
        Vec::new()
    } else {
        compare_metadata(a.metadata(), b.metadata())
    };
    Ok(Document {
        equal: tensors.is_empty() && metadata.is_empty(),
        equal_tensors,
        tensors,
        metadata,
    })
}

/// Both tensors, if they can be compared value by value.
fn comparable<'a>(&(_, a, b): &Pair<'a>) -> Option<(Tensor<'a>, Tensor<'a>)> {
    let is_read = |tensor: &Tensor<'_>| !other::stored(tensor).is_some_and(other::is_unread);
    a.zip(b).filter(|(a, b)| a.shape() == b.shape() && is_read(a) && is_read(b))
}

fn compare_metadata<'a>(a: &'a Metadata, b: &'a Metadata) -> Vec<MetadataEntry<'a>> {
    let keys: BTreeSet<&str> = a.keys().chain(b.keys()).map(String::as_str).collect();
    let entry = |key| MetadataEntry {
        key,
        a: a.get(key).map(String::as_str),
        b: b.get(key).map(String::as_str),
    };
    keys.into_iter().map(entry).filter(|entry| entry.a != entry.b).collect()
}

impl Document<'_> {
    fn show(&self, out: &mut impl Write) -> anyhow::Result<()> {
        if !self.tensors.is_empty() {
            // These are rare, so they get a column only if there are any.
            let bits = self
                .tensors
                .iter()
                .any(|entry| entry.values.is_some_and(|values| values.other_bits > 0));
            let number = |title, rank| Column::number(title).rank(rank);
            let mut columns =
                vec![Column::word("").rank(0), Column::name("name").rank(0).distinct()];
            // What differs is never left out.
            columns.extend([Column::word("A").rank(2), Column::word("B").rank(0)]);
            columns.push(number("values", 0));
            columns.extend(bits.then(|| number("other bits", 6)));
            columns.extend([number("max abs", 4), number("max rel", 5)]);
            table::write(&columns, out, |rows| {
                self.tensors.iter().for_each(|entry| rows.row(entry.cells(bits)));
            })?;
            writeln!(out)?;
        }
        if !self.metadata.is_empty() {
            let columns = [("", Left), ("metadata", Left), ("A", Left), ("B", Left)];
            table::write(&columns, out, |rows| {
                for entry in &self.metadata {
                    let value = |value: Option<&str>| value.map(text::value).unwrap_or_default();
                    let sign = sign(entry.a.is_some(), entry.b.is_some());
                    rows.row([sign.into(), text::name(entry.key), value(entry.a), value(entry.b)]);
                }
            })?;
            writeln!(out)?;
        }
        let mut only = [0_u64; 2];
        let (mut differ, mut unread) = (0, 0);
        for entry in &self.tensors {
            match (&entry.a, &entry.b) {
                (Some(_), None) => only[0] += 1,
                (None, Some(_)) => only[1] += 1,
                _ if entry.error.is_some() => unread += 1,
                _ => differ += 1,
            }
        }
        let mut parts = vec![format!("{} equal", text::counted(self.equal_tensors, "tensor"))];
        let counts = [
            (differ, "different"),
            (unread, "unread"),
            (only[0], "only in A"),
            (only[1], "only in B"),
        ];
        parts.extend(
            counts
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{} {what}", text::count(*count))),
        );
        if !self.metadata.is_empty() {
            parts.push("other metadata".into());
        }
        Ok(writeln!(out, "{}", parts.join(", "))?)
    }
}

impl Entry<'_> {
    fn cells(&self, bits: bool) -> Vec<String> {
        let side = |side: &Option<Side<'_>>| {
            side.as_ref()
                .map(|it| format!("{} {}", it.dtype, other::shape_text(it.dtype, it.shape)))
                .unwrap_or_default()
        };
        let [values, other_bits, absolute, relative] = match self.values {
            Some(Difference { values, other_bits, of, max_absolute, max_relative }) => [
                format!("{} of {}", text::count(values), text::count(of)),
                text::count(other_bits),
                text::number(max_absolute),
                text::number(max_relative),
            ],
            None => <[String; 4]>::default(),
        };
        // Of a tensor on both sides, B says only what is not as in A.
        let b = match (&self.a, &self.b) {
            (Some(a), Some(b)) => {
                let dtype = (a.dtype != b.dtype).then(|| b.dtype.to_string());
                let shape = (a.shape != b.shape).then(|| other::shape_text(b.dtype, b.shape));
                dtype.into_iter().chain(shape).collect::<Vec<_>>().join(" ")
            }
            (_, b) => side(b),
        };
        let sign = sign(self.a.is_some(), self.b.is_some());
        let mut cells = vec![sign.into(), text::name(self.name), side(&self.a), b, values];
        cells.extend(bits.then_some(other_bits));
        cells.extend([absolute, relative]);
        cells
    }
}

/// The sign before a row: only in A, only in B, or changed.
fn sign(a: bool, b: bool) -> &'static str {
    match (a, b) {
        (true, false) => "-",
        (false, true) => "+",
        _ => "~",
    }
}
