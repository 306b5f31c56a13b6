//! `safetensors inspect`: what is in a file or checkpoint.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::audit::FileLayout;
use safetensors_core::{Checkpoint, FileSource, LazyTensor, Metadata, ReadAt};
use serde::Serialize;

use crate::input;
use crate::json;
use crate::order::Sort;
use crate::select::Select;
use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::text;
use crate::totals::Totals;
use crate::tree::Tree;

/// Show the modules, tensors, totals, metadata and files of a checkpoint.
///
/// PATH is a file, an index (*.safetensors.index.json), a directory that holds an
/// index or exactly one file, or - for standard input. Only headers are read.
///
/// Tensors are shown as a tree of modules, in which layers that differ in nothing
/// but their number are one: 0…31 stands for 32 of them, and the counts in its rows
/// are those of all 32. --flat lists each tensor. Characters of names that are not
/// printable are escaped; very long names and values are shortened.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, an index or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// One row a tensor, no tree
    #[arg(long)]
    flat: bool,
    #[command(flatten)]
    select: Select,
    /// The order of modules and tensors; by name if it is a tree, by offset if it is flat
    #[arg(short, long, value_name = "ORDER", value_enum)]
    sort: Option<Sort>,
    /// Everything as one JSON document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors inspect model.safetensors
  safetensors inspect path/to/checkpoint/ --sort size
  safetensors inspect model.safetensors --flat --filter '*.attention.*'
  safetensors inspect model.safetensors --json | jq '.tensors[].name'

Exit codes: 0 shown, 1 PATH is malformed or cannot be read, 2 wrong usage.";

type Tensors<'a> = [LazyTensor<'a, FileSource>];

/// Shows one checkpoint.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = input::open(&args.path)?;
    let mut tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let layouts = checkpoint.shards().iter().map(|shard| shard.layout()).collect::<Result<Vec<_>, _>>()?;
    if args.json || args.flat {
        tensors = args.sort.unwrap_or(Sort::Offset).tensors(tensors);
    }
    if args.json {
        json::write(&document(&checkpoint, &tensors, &layouts), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    match args.flat {
        _ if tensors.is_empty() => writeln!(out, "no tensors")?,
        true => write_flat(&checkpoint, &tensors, out)?,
        false => write_tree(&Tree::folded(&tensors, args.sort.unwrap_or(Sort::Name)), out)?,
    }
    writeln!(out)?;
    write_totals(&checkpoint, &tensors, out)?;
    writeln!(out)?;
    write_metadata(&checkpoint, out)?;
    writeln!(out)?;
    write_files(&checkpoint, &layouts, out)?;
    Ok(ExitCode::SUCCESS)
}

fn write_tree(trees: &[Tree], out: &mut impl Write) -> io::Result<()> {
    let columns = [
        ("module", Left),
        ("dtype", Left),
        ("shape", Left),
        ("tensors", Right),
        ("parameters", Right),
        ("size", Right),
    ];
    let mut table = Table::new(&columns);
    trees.iter().for_each(|tree| tree_rows(tree, "", "", 1, &mut table));
    table.write(out)
}

/// The row of a module or tensor, after `branch`; and of what is inside, after `indent`.
fn tree_rows(tree: &Tree, branch: &str, indent: &str, copies: u64, table: &mut Table) {
    let totals = tree.all() * copies;
    let (dtype, shape) = match &tree.leaf {
        Some((dtype, shape)) => (dtype.to_string(), text::shape(shape)),
        None => (String::new(), String::new()),
    };
    let name = format!("{branch}{}", text::name(&tree.label));
    let parameters = text::count(totals.parameters);
    table.row([name, dtype, shape, text::count(totals.tensors), parameters, text::size(totals.bytes)]);
    for (i, child) in tree.children.iter().enumerate() {
        let (branch, next) = if i + 1 < tree.children.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
        tree_rows(child, &format!("{indent}{branch}"), &format!("{indent}{next}"), copies * tree.copies, table);
    }
}

fn write_flat(checkpoint: &Checkpoint, tensors: &Tensors<'_>, out: &mut impl Write) -> io::Result<()> {
    let several = checkpoint.shards().len() > 1;
    let columns = [("name", Left), ("dtype", Left), ("shape", Left), ("size", Right), ("file", Left)];
    let mut table = Table::new(if several { &columns } else { &columns[..4] });
    for tensor in tensors {
        let cells = [
            text::name(tensor.name()),
            tensor.dtype().to_string(),
            text::shape(tensor.shape()),
            text::size(tensor.byte_len()),
        ];
        let file = tensor.file().filter(|_| several).map(|file| input::shard_name(checkpoint, file));
        table.row(cells.into_iter().chain(file));
    }
    table.write(out)
}

fn write_totals(checkpoint: &Checkpoint, tensors: &Tensors<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new(&[("dtype", Left), ("tensors", Right), ("parameters", Right), ("size", Right)]);
    let mut row = |title: String, totals: Totals| {
        table.row([title, text::count(totals.tensors), text::count(totals.parameters), text::size(totals.bytes)]);
    };
    for (dtype, totals) in Totals::by_dtype(tensors.iter().copied()) {
        row(dtype.to_string(), totals);
    }
    row("total".into(), Totals::of(tensors.iter().copied()));
    table.write(out)?;
    if tensors.len() < checkpoint.len() {
        let all = text::counted(checkpoint.len() as u64, "tensor");
        writeln!(out, "\n{} of {all} shown", text::count(tensors.len() as u64))?;
    }
    Ok(())
}

fn write_metadata(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    if checkpoint.metadata().is_empty() {
        return writeln!(out, "no metadata");
    }
    let mut table = Table::new(&[("metadata", Left), ("value", Left)]);
    for (key, value) in checkpoint.metadata() {
        table.row([text::name(key), text::value(value)]);
    }
    table.write(out)
}

/// The files with their lengths, which include the headers, and what is aligned in them; and the index.
fn write_files(checkpoint: &Checkpoint, layouts: &[FileLayout], out: &mut impl Write) -> io::Result<()> {
    let columns = [
        ("file", Left),
        ("tensors", Right),
        ("size", Right),
        ("header", Right),
        ("padding", Right),
        ("data at", Right),
        ("aligned to", Right),
        ("misaligned", Right),
    ];
    let any_misaligned = layouts.iter().any(|layout| layout.misaligned_tensors > 0);
    let columns = if any_misaligned { &columns[..] } else { &columns[..7] };
    let mut table = Table::new(columns);
    for (shard, layout) in checkpoint.shards().iter().zip(layouts) {
        let archive = shard.archive();
        let cells = [
            text::path(shard.path()),
            text::count(archive.header().len() as u64),
            text::size(archive.bytes().byte_len()),
            text::size(layout.header_len),
            text::size(layout.padding),
            text::count(layout.data_start),
            text::size(layout.data_alignment),
            text::counted(layout.misaligned_tensors, "tensor"),
        ];
        table.row(cells.into_iter().take(columns.len()));
    }
    table.write(out)?;
    match checkpoint.index() {
        Some(index) => writeln!(out, "\nindex: {}", text::path(index)),
        None => Ok(()),
    }
}

/// What `--json` writes. Sizes are in bytes, offsets from the start of the file.
#[derive(Serialize)]
struct Document<'a> {
    index: Option<String>,
    metadata: &'a Metadata,
    total: Totals,
    dtypes: BTreeMap<&'static str, Totals>,
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry<'a>>,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    tensors: usize,
    bytes: u64,
    header_bytes: u64,
    leading_bytes: u64,
    padding_bytes: u64,
    foreign_padding: bool,
    data_start: u64,
    data_alignment: u64,
    misaligned_tensors: u64,
}

#[derive(Serialize)]
struct TensorEntry<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [usize],
    parameters: u64,
    bytes: u64,
    /// Among `files`.
    file: usize,
    offset: u64,
}

fn document<'a>(checkpoint: &'a Checkpoint, tensors: &Tensors<'a>, layouts: &[FileLayout]) -> Document<'a> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let files: BTreeMap<&Path, usize> =
        checkpoint.shards().iter().enumerate().map(|(i, shard)| (shard.path(), i)).collect();
    let mut entries = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        entries.push(TensorEntry {
            name: tensor.name(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape(),
            parameters: tensor.element_count(),
            bytes: tensor.byte_len(),
            file: tensor.file().and_then(|file| files.get(file)).copied().unwrap_or_default(),
            offset: tensor.file_offset(),
        });
    }
    let dtypes = Totals::by_dtype(tensors.iter().copied());
    let files = checkpoint.shards().iter().zip(layouts).map(|(shard, layout)| FileEntry {
        path: path(shard.path()),
        tensors: shard.archive().header().len(),
        bytes: shard.archive().bytes().byte_len(),
        header_bytes: layout.header_len,
        leading_bytes: layout.leading_space,
        padding_bytes: layout.padding,
        foreign_padding: layout.is_padding_foreign,
        data_start: layout.data_start,
        data_alignment: layout.data_alignment,
        misaligned_tensors: layout.misaligned_tensors,
    });
    Document {
        index: checkpoint.index().map(path),
        metadata: checkpoint.metadata(),
        total: Totals::of(tensors.iter().copied()),
        dtypes: dtypes.into_iter().map(|(dtype, totals)| (dtype.name(), totals)).collect(),
        files: files.collect(),
        tensors: entries,
    }
}
