//! The output for people.

use std::collections::BTreeMap;
use std::io::{self, Write};

use safetensors_core::ReadAt;
use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::header::{attributes, dimensions};
use safetensors_core::quantized::QuantizedWeight;
use safetensors_formats::TensorFile;

use super::{Dtypes, File, Tensors};
use crate::input;
use crate::input::other::{self, DisplayedTensor};
use crate::input::{Checkpoint, Source, Tensor};
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::terminal::table::{self, Column, Columns, Rows};
use crate::terminal::text;

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

#[derive(Default)]
struct Branch {
    before: String,
    /// The text before the names of its content.
    indent: String,
    /// How often the content occurs in the checkpoint.
    copies: u64,
    /// The levels that are left to show.
    depth: u64,
}

fn tree_rows(tree: &Tree<'_>, branch: &Branch, rows: &mut Rows<'_>) {
    let Branch { before, indent, copies, depth } = branch;
    let totals = tree.all() * *copies;
    let (dtype, shape) = tree.tensor().map(dtype_and_shape).unwrap_or_default();
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

fn dtype_and_shape(tensor: DisplayedTensor<'_>) -> (String, String) {
    (tensor.kind().to_string(), tensor.kind().shape_text(tensor.shape()))
}

pub(super) fn flat(
    checkpoint: &Checkpoint,
    tensors: &Tensors<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let file = |tensor: &Tensor<'_>| Some(input::shard_name(checkpoint, tensor.file()?));
    let columns: &Columns<'_, &Tensor<'_>> = &[
        (Column::name("name").rank(0).distinct(), &|tensor| text::name(tensor.name())),
        (Column::word("dtype").rank(2), &|tensor| dtype_and_shape(DisplayedTensor::new(tensor)).0),
        (Column::name("shape").rank(3), &|tensor| dtype_and_shape(DisplayedTensor::new(tensor)).1),
        (Column::number("size").rank(1), &|tensor| {
            text::size(DisplayedTensor::new(tensor).byte_len())
        }),
        (Column::word("file").rank(4), &|tensor| file(tensor).unwrap_or_default()),
    ];
    let columns = if checkpoint.files().len() > 1 { columns } else { &columns[..4] };
    table::list(tensors.iter(), columns, out)
}

/// Writes the totals by dtype and overall, and how many tensors are shown.
pub(super) fn totals(
    checkpoint: &Checkpoint,
    dtypes: &Dtypes<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let total: Totals = dtypes.values().copied().sum();
    let sums = dtypes.iter().map(|(dtype, totals)| (dtype.name(), *totals));
    let columns: &Columns<'_, (&str, Totals)> = &[
        (Column::name("dtype"), &|(title, _)| (*title).to_owned()),
        (Column::number("tensors"), &|(_, totals)| text::count(totals.tensors)),
        (Column::number("parameters"), &|(_, totals)| text::count(totals.parameters)),
        (Column::number("size"), &|(_, totals)| text::size(totals.bytes)),
    ];
    table::list(sums.chain([("total", total)]), columns, out)?;
    let all = checkpoint.len() as u64;
    if total.tensors < all {
        let (shown, all) = (text::count(total.tensors), text::counted(all, "tensor"));
        writeln!(out, "\n{shown} of {all} shown")?;
    }
    Ok(())
}

/// One by one, or the sums of schemes.
pub(super) fn quantized(
    weights: &[QuantizedWeight],
    one_by_one: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out)?;
    if one_by_one { each_weight(weights, out) } else { schemes(weights, out) }
}

/// Writes each weight with the bits of an element, scales included.
fn each_weight(weights: &[QuantizedWeight], out: &mut impl Write) -> io::Result<()> {
    let columns: &Columns<'_, &QuantizedWeight> = &[
        (Column::name("quantised weight").rank(0).distinct(), &|it| text::name(&it.name)),
        (Column::word("stored as").rank(1), &|it| it.scheme.to_owned()),
        (Column::name("shape").rank(3), &|it| text::shape(&it.shape)),
        (Column::number("size").rank(4), &|it| text::size(it.byte_len)),
        (Column::number("bits each").rank(2), &|it| {
            text::bits_each(it.byte_len, other::elements(&it.shape))
        }),
    ];
    table::list(weights.iter(), columns, out)
}

fn schemes(weights: &[QuantizedWeight], out: &mut impl Write) -> io::Result<()> {
    let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for weight in weights {
        let sum = sums.entry(weight.scheme).or_default();
        let own = [1, other::elements(&weight.shape), weight.byte_len];
        for (sum, more) in sum.iter_mut().zip(own) {
            *sum = sum.saturating_add(more);
        }
    }
    let columns: &Columns<'_, (&&str, &[u64; 3])> = &[
        (Column::name("quantised as"), &|(scheme, _)| scheme.to_string()),
        (Column::number("weights"), &|(_, [count, ..])| text::count(*count)),
        (Column::number("parameters"), &|(_, [_, parameters, _])| text::count(*parameters)),
        (Column::number("size"), &|(_, [.., bytes])| text::size(*bytes)),
        (Column::number("bits each"), &|(_, [_, parameters, bytes])| {
            text::bits_each(*bytes, *parameters)
        }),
    ];
    table::list(sums.iter(), columns, out)
}

/// Shows named dimensions and their units.
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

pub(super) fn metadata(checkpoint: &Checkpoint, out: &mut impl Write) -> io::Result<()> {
    if checkpoint.metadata().is_empty() {
        return writeln!(out, "no metadata");
    }
    let columns: &Columns<'_, (&String, &String)> = &[
        (Column::name("metadata").rank(0), &|(key, _)| text::name(key)),
        (Column::text("value").rank(0), &|(_, value)| text::value(value)),
    ];
    table::list(checkpoint.metadata().iter(), columns, out)
}

/// Writes a line about the files, or each with its size, header included, and alignment. Notes
/// about other formats follow.
pub(super) fn files(
    checkpoint: &Checkpoint,
    files: &[File<'_>],
    is_listed: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let others: Vec<_> = files
        .iter()
        .filter_map(|(file, _)| other::tensor_file(file.safetensors().source()))
        .collect();
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
        let columns: &Columns<'_, (&File<'_>, &&TensorFile)> = &[
            (Column::name("file"), &|((file, _), _)| text::path(file.path())),
            (Column::name("format"), &|(_, other)| other.format().to_string()),
            (Column::number("tensors"), &|((file, _), _)| tensor_count(file)),
            (Column::number("size"), &|(_, other)| text::size(other.file_len())),
        ];
        table::list(files.iter().zip(&others), columns, out)?;
    }
    for ((file, _), other) in files.iter().zip(&others) {
        for note in other.notes() {
            writeln!(out, "\n{}: {}", text::path(file.path()), text::printable(note))?;
        }
    }
    Ok(())
}

fn tensor_count(file: &CheckpointFile<Source>) -> String {
    text::count(file.safetensors().header().len() as u64)
}

fn safetensors_files(
    checkpoint: &Checkpoint,
    files: &[File<'_>],
    any_misaligned: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns: &Columns<'_, &File<'_>> = &[
        (Column::name("file").rank(0).distinct(), &|(file, _)| {
            input::shard_name(checkpoint, file.path())
        }),
        (Column::number("tensors").rank(3), &|(file, _)| tensor_count(file)),
        (Column::number("size").rank(1), &|(file, _)| {
            text::size(file.safetensors().source().byte_len())
        }),
        (Column::number("header").rank(4), &|(_, layout)| text::size(layout.header_len)),
        (Column::number("padding").rank(7), &|(_, layout)| text::size(layout.padding)),
        (Column::number("data at").rank(6), &|(_, layout)| text::count(layout.data_start)),
        (Column::number("aligned to").rank(5), &|(_, layout)| text::size(layout.data_alignment)),
        (Column::number("misaligned").rank(2), &|(_, layout)| {
            text::counted(layout.misaligned_tensors, "tensor")
        }),
    ];
    table::list(files.iter(), if any_misaligned { columns } else { &columns[..7] }, out)?;
    match checkpoint.index_path() {
        Some(index) => writeln!(out, "\nindex: {}", text::path(index)),
        None => Ok(()),
    }
}
