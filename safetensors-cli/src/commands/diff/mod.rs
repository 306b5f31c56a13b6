//! `safetensors diff`: compares two checkpoints.
//!
//! | file | content |
//! |---|---|
//! | `alike` | experts and projections that only one side has in one tensor |
//! | `compare` | the differences between two tensors, piece by piece |
//! | `distance` | how far pairs of numbers are apart |
//! | `pairs` | which tensors are compared with each other: renamed ones, other names |
//! | `tolerance` | how far apart they may be and still count as equal |

mod alike;
mod compare;
mod distance;
mod pairs;
mod tolerance;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use compare::Buffers;
use distance::Difference;
use pairs::{Pair, kind, shape};
use safetensors_core::framework::in_order;
use safetensors_core::load::Piece;
use safetensors_core::{Error, Metadata};
use serde::Serialize;
use tolerance::Tolerance;

use super::Run;
use crate::input;
use crate::input::find;
use crate::input::other::Kind;
use crate::input::renames::Renames;
use crate::input::select::{Replaced, Select};
use crate::input::values::Values;
use crate::input::{Checkpoint, Source};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::table::{Column, Columns};
use crate::terminal::{json, table, text};

/// Compare two checkpoints: names, dtypes, shapes, values and metadata.
///
/// How a checkpoint is split into files makes no difference. A row starts with - if only A has the
/// tensor, with + if only B has it, and with ~ if it differs.
///
/// Tensors of one shape are compared value by value, in pieces. Values of one dtype are equal if
/// their bits are. With a tolerance, which may be 0, or different dtypes, they are compared as
/// numbers: 0 equals -0, NaN equals NaN, and integers over 2^53 are rounded to F64. NaN is
/// infinitely far from a number, and infinity from all else. A PyTorch tensor that cannot be read
/// counts as unequal, and the exit code is 2, unless something else differs.
///
/// Experts that only one side stacks in one tensor, such as mlp.experts.gate_up_proj, are split as
/// by `safetensors convert --experts` before they are compared; if the architecture is unknown, the
/// gate comes first. A fused gate_up_proj is compared with gate_proj and up_proj.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file, index, directory or address (feature remote), or - for standard input
    ///
    /// `safetensors inspect --help` explains indexes, directories and addresses
    #[arg(value_name = "A", value_parser = crate::input::address::parser())]
    a: PathBuf,
    /// The one to compare with A; only one of them can be standard input
    #[arg(value_name = "B", value_parser = crate::input::address::parser())]
    b: PathBuf,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    values: Values,
    #[command(flatten)]
    tolerance: Tolerance,
    /// Compare A under other names: replace REGEX in them by NEW; $1 is the first group
    ///
    /// Write ${1} if a letter follows. May be repeated
    #[arg(long, num_args = 2, value_names = ["REGEX", "NEW"], allow_hyphen_values = true)]
    rename: Vec<String>,
    /// Compare only names, dtypes, shapes and metadata, as stored; read no values
    #[arg(long, conflicts_with_all = ["absolute", "relative"])]
    headers: bool,
    /// Treat tensors of different dtypes as equal if their values are equal
    #[arg(long)]
    ignore_dtype: bool,
    /// Do not compare metadata
    #[arg(long)]
    ignore_metadata: bool,
    /// Print nothing; end at the first difference
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print everything as one JSON document
    ///
    /// A tensor has the number of its values (of), of different ones (values), and of those with
    /// different bits only (other_bits). max_absolute and max_relative are null if NaN or infinity
    /// is compared with another value: JSON has no infinity
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors diff before.safetensors after.safetensors
  safetensors diff model.safetensors shards/ --ignore-metadata && echo equal
  safetensors diff before.safetensors after.safetensors --tolerance 0
  safetensors diff f32/ bf16/ --ignore-dtype --relative-tolerance 0.004
  safetensors diff hf://owner/name model/ --headers
  safetensors diff old/ new/ --rename '^transformer\\.' model. --quiet

Exit codes: 0 equal, 1 different, 2 wrong usage, or a path is malformed or cannot be read.";

/// A tensor that differs, with its dtype and shape on each side.
#[derive(Serialize)]
struct Entry<'a> {
    name: String,
    a: Option<Side<'a>>,
    b: Option<Side<'a>>,
    /// `None` unless both sides have the tensor in the same shape, and it can be read.
    values: Option<Difference>,
    /// Why the values of a side cannot be read, where nothing but these may differ.
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
    headers_only: bool,
    equal_tensors: u64,
    tensors: Vec<Entry<'a>>,
    metadata: Vec<MetadataEntry<'a>>,
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    /// As of `cmp` and `grep`, so that a difference is not taken for trouble.
    fn trouble(&self) -> ExitCode {
        ExitCode::from(2)
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if input::is_stdin(&self.a) && input::is_stdin(&self.b) {
            return Err(wrong_usage("A and B cannot both be standard input"));
        }
        let open = |path| match self.headers {
            true => input::open(path),
            false => {
                let opened = input::open_with(path, self.values.opening())?;
                self.values.apply(opened, Select::default().matcher())
            }
        };
        let [a, b] = [open(&self.a)?, open(&self.b)?];
        let [a, b] = if self.headers { [a, b] } else { alike::alike(a, b)? };
        let document = compare(self, &a, &b)?;
        if self.json {
            json::write(&document, out)?;
        } else {
            if !self.quiet {
                document.show(out)?;
                out.flush()?;
            }
            document.tensors.iter().filter_map(|entry| entry.error.as_ref()).for_each(report);
        }
        Ok(match document.equal {
            true => ExitCode::SUCCESS,
            false if document.has_difference() => ExitCode::FAILURE,
            false => self.trouble(),
        })
    }
}

fn compare<'a>(args: &Args, a: &'a Checkpoint, b: &'a Checkpoint) -> anyhow::Result<Document<'a>> {
    let matcher = args.select.matcher();
    let renames = Renames::new(&args.rename)?;
    if !args.select.ignore_unmatched {
        renames.check(&find::names(a))?;
    }
    let mut pairs = pairs::pairs(a, b, &renames)?;
    let names = pairs.iter().flat_map(Pair::names).collect::<Vec<_>>();
    matcher.check(&names, &Replaced::default())?;
    pairs.retain(|pair| pair.names().any(|name| matcher.matches(name)));
    let metadata = if args.ignore_metadata {
        Vec::new()
    } else {
        compare_metadata(a.metadata(), b.metadata())
    };
    let same_headers = |pair: &Pair<'_>| pair.has_equal_headers(args.ignore_dtype);
    let is_decided = args.quiet && !(metadata.is_empty() && pairs.iter().all(same_headers));
    let differences = if args.headers || is_decided {
        vec![None; pairs.len()]
    } else {
        compare_values(args, &pairs)?
    };
    let mut tensors = Vec::new();
    let mut equal_tensors = 0;
    for (pair, values) in pairs.into_iter().zip(differences) {
        let same_values = values.map_or(args.headers || is_decided, |values| values.is_none());
        if same_values && same_headers(&pair) {
            equal_tensors += 1;
        } else {
            let error = pair.why_unread().filter(|_| !args.headers && same_headers(&pair));
            tensors.push(Entry::new(pair, values, error));
        }
    }
    Ok(Document {
        equal: tensors.is_empty() && metadata.is_empty(),
        headers_only: args.headers,
        equal_tensors,
        tensors,
        metadata,
    })
}

/// Returns the differences of the values of each pair that has some to compare.
fn compare_values(args: &Args, pairs: &[Pair<'_>]) -> anyhow::Result<Vec<Option<Difference>>> {
    let bytes = pairs.iter().filter_map(Pair::comparable).map(|(a, b)| a.byte_len() + b.byte_len());
    let progress = Progress::bytes(bytes.sum());
    let mut differences: Vec<_> =
        pairs.iter().map(|pair| pair.comparable().map(|_| Difference::default())).collect();
    // A large tensor is shared by several threads.
    let pieces = pairs.iter().enumerate().flat_map(|(i, pair)| {
        let both = pair.comparable().into_iter().flat_map(|(a, b)| a.pieces().zip(b.pieces()));
        both.map(move |(a, b)| (i, a, b))
    });
    type Both<'a> = (usize, Piece<'a, Source>, Piece<'a, Source>);
    let work = |(_, a, b): &Both<'_>, buffers: &mut Buffers| {
        let difference = Difference::compare(a, b, args.tolerance, buffers);
        progress.add(a.byte_len() + b.byte_len());
        difference
    };
    let compared = in_order(pieces, 0, work, |(i, ..), found| -> Result<(), Option<Error>> {
        let found = found.map_err(Some)?;
        differences[i].iter_mut().for_each(|difference| difference.merge(&found));
        // No more is asked for.
        if args.quiet && !found.is_none() { Err(None) } else { Ok(()) }
    });
    match compared {
        Err(Some(error)) => Err(error.into()),
        Err(None) | Ok(()) => Ok(differences),
    }
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
    /// Whether something is known to differ, whatever could not be read.
    fn has_difference(&self) -> bool {
        !self.metadata.is_empty() || self.tensors.iter().any(|entry| entry.error.is_none())
    }

    fn show(&self, out: &mut impl Write) -> anyhow::Result<()> {
        if !self.tensors.is_empty() {
            let columns: &Columns<'_, &Entry<'_>> = &[
                (Column::word("").rank(0), &|it| sign(it.a.is_some(), it.b.is_some())),
                (Column::name("name").rank(0).distinct(), &|it| text::name(&it.name)),
                (Column::word("differs").rank(0), &|it| it.reasons().join(", ")),
                (Column::word("A → B").rank(1), &|it| it.change()),
                (Column::number("values").rank(2), &|it| it.of_values(Difference::counts)),
                (Column::number("max abs").rank(3), &|it| {
                    it.of_values(|values| text::number(values.max_absolute))
                }),
                (Column::number("max rel").rank(4), &|it| {
                    it.of_values(|values| text::number(values.max_relative))
                }),
            ];
            let columns = if self.headers_only { &columns[..4] } else { columns };
            table::list(self.tensors.iter(), columns, out)?;
            writeln!(out)?;
        }
        if !self.metadata.is_empty() {
            let value = |value: Option<&str>| value.map(text::value).unwrap_or_default();
            let columns: &Columns<'_, &MetadataEntry<'_>> = &[
                (Column::name(""), &|it| sign(it.a.is_some(), it.b.is_some())),
                (Column::name("metadata"), &|it| text::name(it.key)),
                (Column::name("A"), &|it| value(it.a)),
                (Column::name("B"), &|it| value(it.b)),
            ];
            table::list(self.metadata.iter(), columns, out)?;
            writeln!(out)?;
        }
        let equal = if self.headers_only { "equal in dtype and shape" } else { "equal" };
        let mut parts = vec![format!("{} {equal}", text::counted(self.equal_tensors, "tensor"))];
        let count = |is: fn(&Entry<'_>) -> bool| self.tensors.iter().filter(|it| is(it)).count();
        let counts = [
            (count(|it| it.a.is_some() && it.b.is_some() && it.error.is_none()), "different"),
            (count(|it| it.error.is_some()), "unread"),
            (count(|it| it.b.is_none()), "only in A"),
            (count(|it| it.a.is_none()), "only in B"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        parts.extend(counts.map(|(count, what)| format!("{} {what}", text::count(count as u64))));
        if !self.metadata.is_empty() {
            parts.push("metadata differs".into());
        }
        Ok(writeln!(out, "{}", parts.join(", "))?)
    }
}

impl<'a> Entry<'a> {
    fn new(pair: Pair<'a>, values: Option<Difference>, error: Option<String>) -> Self {
        let [a, b] =
            [pair.a, pair.b].map(|it| Some(Side { dtype: kind(&it?), shape: shape(&it?) }));
        Self { name: pair.name, a, b, values, error }
    }

    /// Returns a text about the values, if they were compared.
    fn of_values(&self, text: impl Fn(&Difference) -> String) -> String {
        self.values.as_ref().map(text).unwrap_or_default()
    }

    /// Returns the reasons, where both sides have the tensor.
    fn reasons(&self) -> Vec<&'static str> {
        let (Some(a), Some(b)) = (&self.a, &self.b) else { return Vec::new() };
        let has = |count: fn(&Difference) -> u64| self.values.is_some_and(|it| count(&it) > 0);
        let has_values = has(|it| it.values);
        let all = [
            (a.dtype != b.dtype, "dtype"),
            (a.shape != b.shape, "shape"),
            (has_values, "values"),
            (!has_values && has(|it| it.other_bits), "bits"),
            (self.error.is_some(), "unread"),
        ];
        all.into_iter().filter(|(differs, _)| *differs).map(|(_, reason)| reason).collect()
    }

    /// Returns the dtype and the shape, each only once where both sides have the same.
    fn change(&self) -> String {
        let (a, b) = match (&self.a, &self.b) {
            (Some(a), Some(b)) => (a, b),
            (Some(side), None) | (None, Some(side)) => (side, side),
            (None, None) => return String::new(),
        };
        let [from, to] = [a, b].map(|side| side.dtype.shape_text(side.shape));
        match (a.dtype == b.dtype, from == to) {
            (true, true) => format!("{} {from}", a.dtype),
            (true, false) => format!("{} {from} → {to}", a.dtype),
            (false, true) => format!("{} → {} {from}", a.dtype, b.dtype),
            (false, false) => format!("{} {from} → {} {to}", a.dtype, b.dtype),
        }
    }
}

impl Difference {
    /// Returns how many of the values differ.
    fn counts(&self) -> String {
        let [values, other_bits] = [self.values, self.other_bits].map(text::count);
        let of = text::count(self.of);
        match (self.values, self.other_bits) {
            (0, 1..) => format!("{other_bits} of {of} in bits"),
            (_, 0) => format!("{values} of {of}"),
            _ => format!("{values} of {of}, {other_bits} in bits"),
        }
    }
}

/// Returns the sign before a row: only in A, only in B, or changed.
fn sign(a: bool, b: bool) -> String {
    match (a, b) {
        (true, false) => "-".into(),
        (false, true) => "+".into(),
        _ => "~".into(),
    }
}
