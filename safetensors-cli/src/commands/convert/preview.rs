//! [`Preview`]: a summary of what will be written, made before anything is written.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use safetensors_core::digest::Note;
use safetensors_core::{Metadata, TensorSource};

use crate::input::{self, Rewrite, Source};
use crate::terminal::table::Column;
use crate::terminal::{table, text};

/// The number of tensors, bytes and files that will be written, and the names of tied weights.
#[derive(Debug, Default)]
pub(super) struct Preview {
    tensors: u64,
    bytes: u64,
    /// The number of files, unless the output is always one.
    files: Option<u64>,
    /// The other names of tied weights. Each maps to the name that is written.
    aliases: BTreeMap<String, String>,
    /// Whether the output has no metadata, and so loses these names.
    is_bare: bool,
    /// The files of an earlier save that are removed.
    removed: Vec<String>,
    /// The number of ranks that the output is divided among, if it is.
    ranks: Option<usize>,
    /// The text of the `config.json` that is written.
    config: Option<String>,
    /// Side effects on records of the inputs, and of files that are replaced.
    notes: Vec<Note>,
}

impl Preview {
    /// A summary of core's plan.
    pub(super) fn of(plan: &safetensors_core::rewrite::Plan<'_, '_, Source>) -> Self {
        Self {
            tensors: plan.tensors().len() as u64,
            bytes: plan.total_size(),
            files: Some(plan.files().len() as u64).filter(|&files| files > 0),
            aliases: plan.aliases().clone(),
            is_bare: false,
            removed: Vec::new(),
            ranks: None,
            config: None,
            notes: Vec::new(),
        }
    }

    /// The same where these files are removed.
    pub(super) fn removing(self, removed: Vec<String>) -> Self {
        Self { removed, ..self }
    }

    /// The same for an output without metadata.
    pub(super) fn bare(self) -> Self {
        Self { is_bare: true, ..self }
    }

    /// The same for an output that is divided among ranks, each with files of its own.
    pub(super) fn divided(self, ranks: usize) -> Self {
        Self { ranks: Some(ranks), files: None, ..self }
    }

    /// The same with this text of a `config.json`.
    pub(super) fn configured(self, config: Option<String>) -> Self {
        Self { config, ..self }
    }

    /// The same with these notes.
    pub(super) fn noting(self, notes: Vec<Note>) -> Self {
        Self { notes, ..self }
    }

    /// Side effects on records of the inputs, and of files that are replaced.
    pub(super) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The text of the `config.json` that is written.
    pub(super) fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// The metadata keys that will be lost: those of `metadata`, and the other names of tied
    /// weights.
    pub(super) fn lost<'a>(&'a self, metadata: &'a Metadata) -> BTreeSet<&'a str> {
        if !self.is_bare {
            return BTreeSet::new();
        }
        metadata.keys().chain(self.aliases.keys()).map(String::as_str).collect()
    }

    /// Whether the output has this name of a tensor.
    pub(super) fn writes(&self, name: &str) -> bool {
        !self.is_bare || !self.aliases.contains_key(name)
    }

    /// The bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The summary as one line of text.
    pub(super) fn summary(&self, path: &Path) -> String {
        let (path, tensors) = (input::shown(path), text::counted(self.tensors, "tensor"));
        let files = self
            .files
            .map(|files| format!(", in {}", text::counted(files, "file")))
            .unwrap_or_default();
        let files = match self.ranks {
            Some(ranks) => format!(", for {}", text::counted(ranks as u64, "rank")),
            None => files,
        };
        let aliases = match self.aliases.len() as u64 {
            0 => String::new(),
            _ if self.is_bare => String::new(),
            more => format!(", and {} of tied weights", text::counted(more, "more name")),
        };
        let config = if self.config.is_some() { ", with config.json" } else { "" };
        format!("{path}: {tensors}, {}{files}{aliases}{config}", text::size(self.bytes))
    }

    /// The files of an earlier save that are removed, as the end of the summary. `done` says
    /// whether they are removed already.
    pub(super) fn removed(&self, done: bool) -> String {
        if self.removed.is_empty() {
            return String::new();
        }
        let files = text::counted(self.removed.len() as u64, "older file");
        let verb = if done { "removed" } else { "would be removed" };
        format!("; {files} {verb}: {}", text::some(&self.removed))
    }

    /// Shows each tensor with its new name and dtype, and the old ones if they change. Another name
    /// of a tied weight is shown with the name that is written.
    pub(super) fn show(&self, rewrite: &Rewrite<'_>, out: &mut impl Write) -> anyhow::Result<()> {
        let any_renamed = rewrite.tensors().any(|(name, tensor)| tensor.source_name() != name);
        let mut columns = vec![
            Column::name("name").rank(0).distinct(),
            Column::word("dtype").rank(2),
            Column::name("shape").rank(4),
            Column::number("size").rank(3),
        ];
        if any_renamed {
            columns.insert(1, Column::name("from").rank(1));
        }
        Ok(table::write(&columns, out, |rows| {
            for (name, tensor) in rewrite.tensors() {
                let old = tensor.source_name();
                let old =
                    any_renamed.then(|| if old == name { String::new() } else { text::name(old) });
                let row =
                    |rest: [String; 3]| std::iter::once(text::name(name)).chain(old).chain(rest);
                if let Some(kept) = self.aliases.get(name) {
                    if self.is_bare {
                        continue;
                    }
                    let same = format!("= {}", text::name(kept));
                    rows.row(row([same, String::new(), String::new()]));
                    continue;
                }
                let (from, to) = (tensor.source_dtype(), tensor.dtype());
                // Scales are not made of what was there in their place.
                let is_new = tensor.is_quantized() && tensor.source_shape() != tensor.shape();
                let dtype =
                    if from == to || is_new { to.to_string() } else { format!("{from} → {to}") };
                let size = text::size(tensor.byte_len());
                rows.row(row([dtype, text::shape(tensor.shape()), size]));
            }
        })?)
    }
}
