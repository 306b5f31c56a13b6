//! Shows a delta, for people and for programs.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors_core::Metadata;
use safetensors_delta::Change;
use serde::Serialize;

use crate::input;
use crate::input::delta::Delta;
use crate::terminal::table::Column;
use crate::terminal::{table, text};

/// Sizes are in bytes.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    path: String,
    version: &'a str,
    base_version: &'a str,
    encoding: String,
    checksum_format: String,
    base_digest: Option<String>,
    result_digest: Option<String>,
    /// The compressed bytes of all tensors.
    bytes: u64,
    tensors: Vec<TensorEntry<'a>>,
    /// Names that the result does not have.
    removed: Vec<&'a str>,
    metadata: Option<&'a Metadata>,
}

#[derive(Serialize)]
struct TensorEntry<'a> {
    name: &'a str,
    change: &'static str,
    dtype: Option<String>,
    shape: Option<&'a [usize]>,
    bytes: u64,
    checksum: &'a str,
}

impl<'a> Document<'a> {
    pub(crate) fn new(path: &Path, delta: &'a Delta) -> Self {
        let changes: HashMap<_, _> = delta.changes().collect();
        let entry = |(tensor, checksum): (input::Tensor<'a>, &'a str)| {
            let change = changes.get(tensor.name()).copied().unwrap_or(Change::Changed);
            let (dtype, shape) = change.whole().unzip();
            TensorEntry {
                name: tensor.name(),
                change: change.name(),
                dtype: dtype.map(|dtype| dtype.to_string()),
                shape,
                bytes: tensor.byte_len(),
                checksum,
            }
        };
        Self {
            path: input::name(path),
            version: delta.version(),
            base_version: delta.base_version(),
            encoding: delta.encoding().to_string(),
            checksum_format: delta.checksum_format().to_string(),
            base_digest: delta.base_digest(),
            result_digest: delta.result_digest(),
            bytes: bytes(delta),
            tensors: delta.checksums().map(entry).collect(),
            removed: removed(delta).collect(),
            metadata: delta.metadata(),
        }
    }
}

fn removed(delta: &Delta) -> impl Iterator<Item = &str> {
    delta.changes().filter(|(_, change)| *change == Change::Removed).map(|(name, _)| name)
}

/// Describes the parts that only this program reads.
fn extra(delta: &Delta) -> String {
    let words = delta.changes().map(|(_, change)| change.name());
    let words: Vec<_> = words.filter(|word| *word != "changed").collect();
    let counted = ["added", "replaced", "removed"].map(|word| {
        let count = words.iter().filter(|it| **it == word).count();
        (count > 0).then(|| format!("{count} {word}"))
    });
    let metadata = delta.metadata().map(|_| "other metadata".to_owned());
    let parts: Vec<_> = counted.into_iter().flatten().chain(metadata).collect();
    if parts.is_empty() { String::new() } else { format!("; {}", parts.join(", ")) }
}

fn bytes(delta: &Delta) -> u64 {
    delta.tensors().map(|tensor| tensor.byte_len()).sum()
}

pub(crate) fn summary(delta: &Delta) -> String {
    let [from, to] = [delta.base_version(), delta.version()].map(text::printable);
    let tensors = text::counted(delta.tensors().count() as u64, "tensor");
    let size = text::size(bytes(delta));
    let (encoding, extra) = (delta.encoding(), extra(delta));
    format!("a delta from {from} to {to}: {tensors}, {size} as {encoding} and zstd{extra}")
}

pub(crate) fn write(delta: &Delta, mut out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", summary(delta))?;
    for (digest, of) in [(delta.base_digest(), "base"), (delta.result_digest(), "result")] {
        let digest = digest.unwrap_or_else(|| "not named".into());
        writeln!(out, "digest of the {of}: {digest}")?;
    }
    if let Some(metadata) = delta.metadata() {
        writeln!(out, "metadata: {}", text::counted(metadata.len() as u64, "entry"))?;
    }
    if delta.changes().next().is_none() {
        return Ok(());
    }
    writeln!(out)?;
    let changes: HashMap<_, _> = delta.changes().collect();
    let is_plain = changes.values().all(|change| *change == Change::Changed);
    let checksum = delta.checksum_format().to_string();
    let mut columns = vec![
        Column::name("name").rank(0).distinct(),
        Column::number("size").rank(1),
        Column::word(&checksum).rank(2),
    ];
    if !is_plain {
        columns.insert(1, Column::word("change").rank(1));
    }
    let written = table::write(&columns, &mut out, |rows| {
        let mut row = |name: &str, size: &str, checksum: &str| {
            let change = changes.get(name).map_or("", |change| change.name());
            let name = &*text::name(name);
            match is_plain {
                true => rows.row([name, size, checksum]),
                false => rows.row([name, change, size, checksum]),
            };
        };
        for (tensor, checksum) in delta.checksums() {
            row(tensor.name(), &text::size(tensor.byte_len()), checksum);
        }
        removed(delta).for_each(|name| row(name, "", ""));
    });
    Ok(written?)
}
