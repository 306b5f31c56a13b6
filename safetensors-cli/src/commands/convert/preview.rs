//! [`Preview`]: a summary of the output, before it is written.

use std::collections::BTreeMap;
use std::io::Write;

use safetensors_core::TensorSource;
use safetensors_core::digest::Note;

use crate::input::{Rewrite, Source};
use crate::terminal::table::Column;
use crate::terminal::{table, text};

#[derive(Debug, Default)]
pub(super) struct Preview {
    tensors: u64,
    pub(super) bytes: u64,
    /// Empty if the output is always one file.
    files: Vec<String>,
    /// The other names of tied weights, each with the name that is written.
    pub(super) aliases: BTreeMap<String, String>,
    /// Whether the output loses these names, because it has no metadata.
    pub(super) is_bare: bool,
    /// The files of an earlier save that are removed.
    pub(super) removed: Vec<String>,
    pub(super) ranks: Option<usize>,
    pub(super) has_config: bool,
    pub(super) others: Vec<String>,
    /// The other files that are not copied.
    pub(super) left: Vec<String>,
    /// Effects on the inputs' records, and on replaced files.
    pub(super) notes: Vec<Note>,
}

impl Preview {
    pub(super) fn new(plan: &safetensors_core::rewrite::Plan<'_, '_, Source>) -> Self {
        Self {
            tensors: plan.tensors().len() as u64,
            bytes: plan.total_size(),
            files: plan.files().map(|(name, _)| name.to_owned()).collect(),
            aliases: plan.aliases().clone(),
            ..Self::default()
        }
    }

    pub(super) fn writes(&self, name: &str) -> bool {
        !self.is_bare || !self.aliases.contains_key(name)
    }

    pub(super) fn summary(&self) -> String {
        let tensors = text::counted(self.tensors, "tensor");
        let files = match (self.ranks, self.files.len() as u64) {
            (Some(ranks), _) => format!(", for {}", text::counted(ranks as u64, "rank")),
            (None, 0) => String::new(),
            (None, files) => format!(", in {}", text::counted(files, "file")),
        };
        let aliases = match self.aliases.len() as u64 {
            0 => String::new(),
            _ if self.is_bare => String::new(),
            more => format!(", and {} of tied weights", text::counted(more, "more name")),
        };
        let mut along = Vec::new();
        along.extend(self.has_config.then(|| "config.json".to_owned()));
        let others = self.others.len() as u64;
        along.extend((others > 0).then(|| text::counted(others, "other file")));
        let with = if along.is_empty() { "" } else { ", with " };
        let along = along.join(" and ");
        format!("{tensors}, {}{files}{aliases}{with}{along}", text::size(self.bytes))
    }

    pub(super) fn named(&self) -> String {
        match self.ranks {
            None if !self.files.is_empty() => format!(": {}", text::some(&self.files)),
            _ => String::new(),
        }
    }

    /// Names the removed files of an earlier save, already gone if `done`.
    pub(super) fn removed(&self, done: bool) -> String {
        if self.removed.is_empty() {
            return String::new();
        }
        let files = text::counted(self.removed.len() as u64, "older file");
        let verb = if done { "removed" } else { "would be removed" };
        format!("; {files} {verb}: {}", text::some(&self.removed))
    }

    /// Describes the copied and the skipped other files.
    pub(super) fn others(&self) -> String {
        let named = |verb: &str, names: &[String]| match names.len() {
            0 => String::new(),
            _ => format!("; {verb}: {}", text::some(names)),
        };
        named("copied", &self.others) + &named("not copied", &self.left)
    }

    /// Shows each tensor with its changes. A tied weight's other name has the written one.
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
                // Scales are not made from the tensors that they replace.
                let is_new = tensor.is_quantized() && tensor.source_shape() != tensor.shape();
                let dtype =
                    if from == to || is_new { to.to_string() } else { format!("{from} → {to}") };
                let size = text::size(tensor.byte_len());
                rows.row(row([dtype, text::shape(tensor.shape()), size]));
            }
        })?)
    }
}
