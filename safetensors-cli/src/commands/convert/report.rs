//! `--report`: the distance of quantised weights from the original ones.

use std::collections::HashSet;
use std::io::{self, Write};

use safetensors_core::lora::Adapter;
use safetensors_core::quantized::QuantizationError;

use super::source::Source;
use crate::input::Rewrite;
use crate::terminal::table::{self, Column, Columns};
use crate::terminal::text;

/// A quantised weight that is written.
struct Row<'a> {
    name: &'a str,
    source: &'a str,
    shape: &'a [usize],
    bytes: u64,
    source_bytes: u64,
    error: QuantizationError,
}

/// How much of the inputs is quantised, for the summary.
pub(super) fn share(rewrite: &Rewrite<'_>) -> String {
    match rewrite.quantized_bytes() {
        (0, _) => String::new(),
        (part, all) => format!(", {} of the bytes of IN quantised", text::percent(part, all)),
    }
}

/// Prints a row for each weight, with the errors that writing found.
pub(super) fn report(rewrite: &Rewrite<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    // The codes of a weight come before its scales.
    for (name, tensor) in rewrite.tensors().filter(|(_, it)| it.is_quantized() && !it.is_alias()) {
        let (source, bytes) = (tensor.source_name(), tensor.byte_len());
        match (tensor.quantization_error(), rows.last_mut()) {
            (Some(error), _) => {
                let shape = tensor.source_shape();
                let name = name.strip_suffix("_packed").unwrap_or(name);
                let source_bytes = tensor.source_len();
                rows.push(Row { name, source, shape, bytes, source_bytes, error });
            }
            (None, Some(row)) if row.source == source => row.bytes += bytes,
            (None, _) => {}
        }
    }
    let parameters = |row: &Row<'_>| row.shape.iter().map(|&dim| dim as u64).product();
    let (_, all) = rewrite.quantized_bytes();
    let columns: &Columns<'_, &Row<'_>> = &[
        (Column::name("quantised weight").rank(0).distinct(), &|row| text::name(row.name)),
        (Column::name("shape").rank(4), &|row| text::shape(row.shape)),
        (Column::number("of all bytes").rank(6), &|row| text::percent(row.source_bytes, all)),
        (Column::number("bits each").rank(2), &|row| text::bits_each(row.bytes, parameters(row))),
        (Column::number("largest error").rank(3), &|row| text::number(row.error.max)),
        (Column::number("rms error").rank(5), &|row| text::number(row.error.rms)),
        (Column::number("relative").rank(1), &|row| text::number(row.error.relative)),
    ];
    table::list(rows.iter(), columns, out)
}

/// Describes the tensors that adapters change, for the summary.
pub(super) fn merged(adapters: &[Adapter], sources: &[Source], rewrite: &Rewrite<'_>) -> String {
    if adapters.is_empty() {
        return String::new();
    }
    let written =
        rewrite.tensors().map(|(_, it)| it.tensor().map_or(it.source_name(), |it| it.name()));
    let written: HashSet<_> = written.collect();
    let changed = sources.iter().flat_map(|source| source.merged.keys());
    let changed = changed.filter(|name| written.contains(name.as_str())).count();
    let tensors = text::counted(changed as u64, "tensor");
    format!(", {tensors} changed by {}", text::counted(adapters.len() as u64, "adapter"))
}
