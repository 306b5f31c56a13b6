//! The output for people: the tensors as a tree or one by one, the totals, the metadata, the files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use safetensors_core::ReadAt;
use safetensors_core::audit::FileLayout;
use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::header::{attributes, dimensions};
use safetensors_core::quantized::QuantizedWeight;

use super::{Dtypes, Tensors};
use crate::input;
use crate::input::other;
use crate::input::{Checkpoint, Source, Tensor};
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::terminal::table::Align::{Left, Right};
use crate::terminal::table::{self, Column, Rows};
use crate::terminal::text;

/// Modules and tensors as a tree of this depth at most.
pub(super) fn tree(trees: &[Tree<'_>], depth: u64, out: &mut impl Write) -> io::Result<()> {
    let columns = [
        Column::name("module").rank(0),
        Column::word("dtype").rank(2),
        Column::name("shape").rank(3),
        Column::number("tensors").rank(5),
        Column::number("parameters").rank(4),
        Column::number("size").rank(1),
    ];
    table::write(&columns, out, |rows| {
        trees.iter().for_each(|tree| {
            tree_rows(tree, &Branch { copies: 1, depth, ..Branch::default() }, rows)
        });
    })
}

/// Where a module or tensor is in the tree.
#[derive(Default)]
struct Branch {
    /// The text before its name.
    before: String,
    /// The text before the names of its content.
    indent: String,
    /// How often the content occurs in the checkpoint.
    copies: u64,
    /// How many levels are shown from here on.
    depth: u64,
}

/// The row of a module or tensor. The rows of its content follow.
fn tree_rows(tree: &Tree<'_>, branch: &Branch, rows: &mut Rows<'_>) {
    let Branch { before, indent, copies, depth } = branch;
    let totals = tree.all() * *copies;
    let (dtype, shape) = match tree.kind().zip(tree.shape()) {
        Some((kind, shape)) => (kind.to_string(), other::shape_text(kind, shape)),
        None => (String::new(), String::new()),
    };
    rows.row([
        format!("{before}{}", text::name(&tree.label)),
        dtype,
        shape,
        text::count(totals.tensors),
        text::count(totals.parameters),
        text::size(totals.bytes),
    ]);
    if *depth <= 1 {
        return;
    }
    for (i, child) in tree.children().iter().enumerate() {
        let is_last = i + 1 == tree.children().len();
        let (before, next) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let (before, indent) = (format!("{indent}{before}"), format!("{indent}{next}"));
        let copies = copies * u64::from(tree.copies);
        tree_rows(child, &Branch { before, indent, copies, depth: depth - 1 }, rows);
    }
}

/// One row per tensor, with its file if there are several.
pub(super) fn flat(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let several = checkpoint.files().len() > 1;
    let columns = [
        Column::name("name").rank(0).distinct(),
        Column::word("dtype").rank(2),
        Column::name("shape").rank(3),
        Column::number("size").rank(1),
        Column::word("file").rank(4),
    ];
    let columns = if several { &columns[..] } else { &columns[..4] };
    let row = |tensor: &Tensor<'_>, rows: &mut Rows<'_>| {
        let shape = other::shape(tensor.info(), other::stored(tensor));
        let cells = [
            text::name(tensor.name()),
            other::kind(tensor).to_string(),
            other::shape_text(other::kind(tensor), shape),
            text::size(other::byte_len(tensor)),
        ];
        let file =
            tensor.file().filter(|_| several).map(|file| input::shard_name(checkpoint, file));
        rows.row(cells.into_iter().chain(file));
    };
    table::write(columns, out, |rows| tensors.iter().for_each(|tensor| row(tensor, rows)))
}

/// The totals for each dtype and overall, and how many of all tensors are shown.
pub(super) fn totals(
    checkpoint: &Checkpoint,
    dtypes: &Dtypes<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let columns = [("dtype", Left), ("tensors", Right), ("parameters", Right), ("size", Right)];
    let total: Totals = dtypes.values().copied().sum();
    let dtypes = dtypes.iter().map(|(dtype, totals)| (dtype.name(), *totals));
    let sums: Vec<_> = dtypes.chain([("total", total)]).collect();
    table::write(&columns, out, |rows| {
        for (title, totals) in &sums {
            rows.row([
                title,
                &*text::count(totals.tensors),
                &text::count(totals.parameters),
                &text::size(totals.bytes),
            ]);
        }
    })?;
    let all = checkpoint.len() as u64;
    if total.tensors < all {
        let (shown, all) = (text::count(total.tensors), text::counted(all, "tensor"));
        writeln!(out, "\n{shown} of {all} shown")?;
    }
    Ok(())
}

/// The quantised weights, one by one or the sums for each scheme, with the bits that an element
/// takes together with its scales.
pub(super) fn quantized(
    weights: &[QuantizedWeight],
    one_by_one: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    if one_by_one {
        let columns = [
            Column::name("quantised weight").rank(0).distinct(),
            Column::word("stored as").rank(1),
            Column::name("shape").rank(3),
            Column::number("size").rank(4),
            Column::number("bits each").rank(2),
        ];
        return table::write(&columns, out, |rows| {
            for weight in weights {
                rows.row([
                    text::name(&weight.name),
                    weight.scheme.to_owned(),
                    text::shape(&weight.shape),
                    text::size(weight.byte_len),
                    text::bits_each(weight.byte_len, other::elements(&weight.shape)),
                ]);
            }
        });
    }
    let columns = [
        ("quantised as", Left),
        ("weights", Right),
        ("parameters", Right),
        ("size", Right),
        ("bits each", Right),
    ];
    let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for weight in weights {
        let sum = sums.entry(weight.scheme).or_default();
        let own = [1, other::elements(&weight.shape), weight.byte_len];
        for (sum, more) in sum.iter_mut().zip(own) {
            *sum = sum.saturating_add(more);
        }
    }
    table::write(&columns, out, |rows| {
        for (&scheme, &[count, parameters, bytes]) in &sums {
            rows.row([
                scheme,
                &*text::count(count),
                &text::count(parameters),
                &text::size(bytes),
                &text::bits_each(bytes, parameters),
            ]);
        }
    })
}

/// Shows the tensors with named dimensions and their units, if there are any.
pub(super) fn labelled(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let metadata = checkpoint.metadata();
    let mut labelled = Vec::new();
    for tensor in tensors {
        let (name, shape) = (tensor.name(), tensor.shape());
        // Problems of names are not asked for, and the metadata shows them as they are.
        let Ok(Some(names)) = dimensions(metadata, name, shape.len()) else { continue };
        let units = attributes(metadata, name).find(|(attribute, _)| *attribute == "units");
        let named = names.iter().zip(shape);
        let named: Vec<_> =
            named.map(|(name, len)| format!("{} {len}", text::name(name))).collect();
        labelled.push([
            text::name(name),
            named.join(" × "),
            units.map_or_else(String::new, |(_, units)| text::value(units)),
        ]);
    }
    if labelled.is_empty() {
        return Ok(());
    }
    labelled.sort();
    let columns = [
        Column::name("labelled").rank(0).distinct(),
        Column::text("dimensions").rank(1),
        Column::text("units").rank(2),
    ];
    writeln!(out)?;
    table::write(&columns, out, |rows| labelled.iter().for_each(|row| rows.row(row)))?;
    Ok(())
}

/// The metadata, one row per entry.
pub(super) fn metadata(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    if checkpoint.metadata().is_empty() {
        return writeln!(out, "no metadata");
    }
    let columns = [Column::name("metadata").rank(0), Column::text("value").rank(0)];
    table::write(&columns, out, |rows| {
        for (key, value) in checkpoint.metadata() {
            rows.row([text::name(key), text::value(value)]);
        }
    })
}

/// A line about the files, or each of them with its size and alignment, and the notes about files of
/// other formats. The size of a file includes its header.
pub(super) fn files(
    checkpoint: &Checkpoint,
    files: &[(&CheckpointFile<Source>, FileLayout)],
    is_listed: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let others: Vec<_> =
        files.iter().filter_map(|(file, _)| other::of(file.safetensors().source())).collect();
    let misaligned = files.iter().map(|(_, layout)| layout.misaligned_tensors).sum::<u64>();
    if !is_listed {
        let bytes = files.iter().map(|(file, _)| other::file_len(file.safetensors().source()));
        let (count, size) =
            (text::counted(files.len() as u64, "file"), text::size(bytes.sum::<u64>()));
        write!(out, "{}: {count}, {size}", input::opened_path(checkpoint))?;
        match others.first() {
            Some(other) => writeln!(out, ", {}", other.format())?,
            None if misaligned == 0 => writeln!(out)?,
            None => writeln!(out, ", {} misaligned", text::counted(misaligned, "tensor"))?,
        }
    } else if others.is_empty() {
        safetensors_files(checkpoint, files, misaligned > 0, out)?;
    } else {
        let columns = [("file", Left), ("format", Left), ("tensors", Right), ("size", Right)];
        table::write(&columns, out, |rows| {
            for ((file, _), other) in files.iter().zip(&others) {
                rows.row([
                    text::path(file.path()),
                    other.format().to_string(),
                    text::count(file.safetensors().header().len() as u64),
                    text::size(other.file_len()),
                ]);
            }
        })?;
    }
    for ((file, _), other) in files.iter().zip(&others) {
        for note in other.notes() {
            writeln!(out, "\n{}: {}", text::path(file.path()), text::printable(note))?;
        }
    }
    Ok(())
}

/// The safetensors files, and the index.
fn safetensors_files(
    checkpoint: &Checkpoint,
    files: &[(&CheckpointFile<Source>, FileLayout)],
    any_misaligned: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns = [
        Column::name("file").rank(0).distinct(),
        Column::number("tensors").rank(3),
        Column::number("size").rank(1),
        Column::number("header").rank(4),
        Column::number("padding").rank(7),
        Column::number("data at").rank(6),
        Column::number("aligned to").rank(5),
        Column::number("misaligned").rank(2),
    ];
    let columns = if any_misaligned { &columns[..] } else { &columns[..7] };
    table::write(columns, out, |rows| {
        for (shard, layout) in files {
            let archive = shard.safetensors();
            let cells = [
                input::shard_name(checkpoint, shard.path()),
                text::count(archive.header().len() as u64),
                text::size(archive.source().byte_len()),
                text::size(layout.header_len),
                text::size(layout.padding),
                text::count(layout.data_start),
                text::size(layout.data_alignment),
                text::counted(layout.misaligned_tensors, "tensor"),
            ];
            rows.row(cells.into_iter().take(columns.len()));
        }
    })?;
    match checkpoint.index_path() {
        Some(index) => writeln!(out, "\nindex: {}", text::path(index)),
        None => Ok(()),
    }
}
