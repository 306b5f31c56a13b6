//! What a delta is, for people and for programs.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::input;
use crate::input::delta::Delta;
use crate::terminal::table::Column;
use crate::terminal::{table, text};

/// The document of a delta. Sizes are in bytes.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    path: String,
    version: &'a str,
    base_version: &'a str,
    encoding: &'a str,
    checksum_format: &'a str,
    base_digest: Option<String>,
    result_digest: Option<String>,
    /// The compressed bytes of all tensors.
    bytes: u64,
    tensors: Vec<TensorEntry<'a>>,
}

#[derive(Serialize)]
struct TensorEntry<'a> {
    name: &'a str,
    bytes: u64,
    checksum: &'a str,
}

impl<'a> Document<'a> {
    pub(crate) fn of(path: &Path, delta: &'a Delta) -> Self {
        let entry = |(tensor, checksum): (input::Tensor<'a>, &'a str)| TensorEntry {
            name: tensor.name(),
            bytes: tensor.byte_len(),
            checksum,
        };
        Self {
            path: input::name(path),
            version: delta.version(),
            base_version: delta.base_version(),
            encoding: delta.encoding().name(),
            checksum_format: delta.checksum_format().name(),
            base_digest: delta.base_digest(),
            result_digest: delta.result_digest(),
            bytes: bytes(delta),
            tensors: delta.checksums().map(entry).collect(),
        }
    }
}

/// The compressed bytes.
fn bytes(delta: &Delta) -> u64 {
    delta.tensors().map(|tensor| tensor.byte_len()).sum()
}

/// A delta in a few words.
pub(crate) fn summary(delta: &Delta) -> String {
    let [from, to] = [delta.base_version(), delta.version()].map(text::printable);
    let tensors = text::counted(delta.tensors().count() as u64, "tensor");
    let size = text::size(bytes(delta));
    format!("a delta from {from} to {to}: {tensors}, {size} as {} and zstd", delta.encoding())
}

/// Writes what a delta is, and its tensors.
pub(crate) fn write(delta: &Delta, mut out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", summary(delta))?;
    for (digest, of) in [(delta.base_digest(), "base"), (delta.result_digest(), "result")] {
        let digest = digest.unwrap_or_else(|| "not named".into());
        writeln!(out, "digest of the {of}: {digest}")?;
    }
    if delta.tensors().next().is_none() {
        return Ok(());
    }
    writeln!(out)?;
    let checksum = delta.checksum_format().name();
    let columns = [
        Column::name("name").rank(0).distinct(),
        Column::number("size").rank(1),
        Column::word(checksum).rank(2),
    ];
    let written = table::write(&columns, &mut out, |rows| {
        for (tensor, checksum) in delta.checksums() {
            rows.row([&*text::name(tensor.name()), &*text::size(tensor.byte_len()), checksum]);
        }
    });
    Ok(written?)
}
