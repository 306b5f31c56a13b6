//! `safetensors inspect`: what is in a file or checkpoint.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::{Checkpoint, ReadAt};

use super::open;
use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::text;
use crate::totals::Totals;

/// Show the tensors, totals, metadata and files of a checkpoint.
///
/// PATH is a file, an index (*.safetensors.index.json), or a directory that holds
/// an index or exactly one file. Only headers are read.
///
/// Tensors are listed in the order in which they lie in the files. Characters of
/// names that are not printable are escaped; very long names and values are
/// shortened.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, an index or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  safetensors inspect model.safetensors
  safetensors inspect path/to/checkpoint/
  safetensors inspect model.safetensors | grep attention

Exit codes: 0 shown, 1 PATH is malformed or cannot be read, 2 wrong usage.";

/// Shows one checkpoint.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = open(&args.path)?;
    write_tensors(&checkpoint, out)?;
    writeln!(out)?;
    write_totals(&checkpoint, out)?;
    writeln!(out)?;
    write_metadata(&checkpoint, out)?;
    writeln!(out)?;
    write_files(&checkpoint, out)?;
    Ok(ExitCode::SUCCESS)
}

fn write_tensors(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    if checkpoint.is_empty() {
        return writeln!(out, "no tensors");
    }
    let several = checkpoint.shards().len() > 1;
    let columns = [("name", Left), ("dtype", Left), ("shape", Left), ("size", Right), ("file", Left)];
    let mut table = Table::new(if several { &columns } else { &columns[..4] });
    for tensor in checkpoint.tensors() {
        let cells = [
            text::name(tensor.name()),
            tensor.dtype().to_string(),
            text::shape(tensor.shape()),
            text::size(tensor.byte_len()),
        ];
        let file = tensor.file().filter(|_| several).map(|file| shard_name(checkpoint, file));
        table.row(cells.into_iter().chain(file));
    }
    table.write(out)
}

fn write_totals(checkpoint: &Checkpoint, out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new(&[("dtype", Left), ("tensors", Right), ("parameters", Right), ("size", Right)]);
    let mut row = |title: String, totals: Totals| {
        table.row([title, text::count(totals.tensors), text::count(totals.parameters), text::size(totals.bytes)]);
    };
    for (dtype, totals) in Totals::by_dtype(checkpoint)? {
        row(dtype.to_string(), totals);
    }
    row("total".into(), Totals::of(checkpoint)?);
    Ok(table.write(out)?)
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

/// The files with their lengths, which include the headers; and the index.
fn write_files(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&[("file", Left), ("tensors", Right), ("size", Right)]);
    for shard in checkpoint.shards() {
        let archive = shard.archive();
        let tensors = text::count(archive.header().len() as u64);
        table.row([text::path(shard.path()), tensors, text::size(archive.bytes().byte_len())]);
    }
    table.write(out)?;
    match checkpoint.index() {
        Some(index) => writeln!(out, "\nindex: {}", text::path(index)),
        None => Ok(()),
    }
}

/// A shard's path as its index has it.
fn shard_name(checkpoint: &Checkpoint, file: &Path) -> String {
    let folder = checkpoint.index().and_then(Path::parent);
    text::path(folder.and_then(|folder| file.strip_prefix(folder).ok()).unwrap_or(file))
}
