//! The output for people: the tensors as a tree or one by one, the totals, the metadata, the files.

use std::io::{self, Write};

use safetensors_core::audit::FileLayout;
use safetensors_core::{Checkpoint, ReadAt};

use super::Tensors;
use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::totals::Totals;
use crate::tree::Tree;
use crate::{input, text};

/// Modules and tensors as a tree.
pub(super) fn tree(trees: &[Tree], out: &mut impl Write) -> io::Result<()> {
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

/// The row of a module or tensor, with `branch` before its name. The rows of its content follow,
/// with `indent` before their names.
fn tree_rows(tree: &Tree, branch: &str, indent: &str, copies: u64, table: &mut Table) {
    let totals = tree.all() * copies;
    let (dtype, shape) = match &tree.leaf {
        Some((dtype, shape)) => (dtype.to_string(), text::shape(shape)),
        None => (String::new(), String::new()),
    };
    let name = format!("{branch}{}", text::name(&tree.label));
    let parameters = text::count(totals.parameters);
    table.row([
        name,
        dtype,
        shape,
        text::count(totals.tensors),
        parameters,
        text::size(totals.bytes),
    ]);
    for (i, child) in tree.children.iter().enumerate() {
        let (branch, next) =
            if i + 1 < tree.children.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
        tree_rows(
            child,
            &format!("{indent}{branch}"),
            &format!("{indent}{next}"),
            copies * tree.copies,
            table,
        );
    }
}

/// One row per tensor, with its file if there are several.
pub(super) fn flat(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let several = checkpoint.files().len() > 1;
    let columns =
        [("name", Left), ("dtype", Left), ("shape", Left), ("size", Right), ("file", Left)];
    let mut table = Table::new(if several { &columns } else { &columns[..4] });
    for tensor in tensors {
        let cells = [
            text::name(tensor.name()),
            tensor.dtype().to_string(),
            text::shape(tensor.shape()),
            text::size(tensor.byte_len()),
        ];
        let file =
            tensor.file().filter(|_| several).map(|file| input::shard_name(checkpoint, file));
        table.row(cells.into_iter().chain(file));
    }
    table.write(out)
}

/// The totals for each dtype and overall, and how many of all tensors are shown.
pub(super) fn totals(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut table =
        Table::new(&[("dtype", Left), ("tensors", Right), ("parameters", Right), ("size", Right)]);
    let mut row = |title: String, totals: Totals| {
        table.row([
            title,
            text::count(totals.tensors),
            text::count(totals.parameters),
            text::size(totals.bytes),
        ]);
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

/// The metadata, one row per entry.
pub(super) fn metadata(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    if checkpoint.metadata().is_empty() {
        return writeln!(out, "no metadata");
    }
    let mut table = Table::new(&[("metadata", Left), ("value", Left)]);
    for (key, value) in checkpoint.metadata() {
        table.row([text::name(key), text::value(value)]);
    }
    table.write(out)
}

/// The files with their sizes and alignment, and the index. The size of a file includes its header.
pub(super) fn files(
    checkpoint: &Checkpoint,
    layouts: &[FileLayout],
    out: &mut impl Write,
) -> io::Result<()> {
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
    for (shard, layout) in checkpoint.files().iter().zip(layouts) {
        let archive = shard.safetensors();
        let cells = [
            text::path(shard.path()),
            text::count(archive.header().len() as u64),
            text::size(archive.source().byte_len()),
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
