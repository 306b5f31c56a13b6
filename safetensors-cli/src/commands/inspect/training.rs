//! A directory of burn's training loop: the checkpoint of each epoch, and the logged metrics.
//!
//! | in the directory | is |
//! |---|---|
//! | `epoch-N/manifest.json` here or one level down | an epoch that safetensors-burn has saved |
//! | `train/epoch-N/NAME.log`, `valid/…` here or one level up | a metric, as burn's loop logs it |

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use safetensors_core::ReadAt;
use safetensors_core::io::next_to;
use serde::Serialize;

use crate::commands::inputs::ShownInput;
use crate::model::epochs::{self, EpochFile, names};
use crate::model::totals::Totals;
use crate::terminal::table::{self, Column};
use crate::terminal::text;

const LOG: u64 = 256 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Training {
    directory: String,
    epochs: Vec<Epoch>,
}

#[derive(Debug, Serialize)]
struct Epoch {
    #[serde(flatten)]
    saved: epochs::Epoch,
    /// The mean of each metric, by the part of the data (`train`, `valid`) and its name.
    metrics: BTreeMap<&'static str, BTreeMap<String, f64>>,
}

/// Returns the trainings of a directory of epochs, or of the directories in it.
pub(super) fn find(directory: &Path) -> Vec<Training> {
    if let Some(training) = Training::find(directory) {
        return vec![training];
    }
    let below = names(directory).into_iter().filter(|name| !name.starts_with('.'));
    below.filter_map(|name| Training::find(&directory.join(name))).collect()
}

impl Training {
    fn find(directory: &Path) -> Option<Self> {
        let found = epochs::in_directory(directory).into_iter();
        let mut epochs: Vec<_> =
            found.map(|saved| Epoch { saved, metrics: BTreeMap::new() }).collect();
        if epochs.is_empty() {
            return None;
        }
        let logs = [Some(directory), directory.parent()];
        for epoch in &mut epochs {
            logs.iter().flatten().for_each(|logs| epoch.add_metrics(logs));
        }
        Some(Self { directory: text::lossy(directory), epochs })
    }

    pub(super) fn shown(&self) -> ShownInput {
        let files = self.epochs.iter().flat_map(|epoch| &epoch.saved.files);
        let totals = files.map(|file| Totals {
            tensors: file.tensors,
            parameters: file.parameters,
            bytes: file.bytes.into(),
        });
        let is_sound = self.epochs.iter().all(|epoch| epoch.saved.problem.is_none());
        ShownInput::new(totals.sum()).sound(is_sound)
    }

    pub(super) fn write(&self, mut out: &mut dyn Write) -> anyhow::Result<()> {
        let metrics: BTreeSet<_> = self.epochs.iter().flat_map(Epoch::metrics_by_title).collect();
        let titles: BTreeSet<_> = metrics.iter().map(|(title, _)| title.clone()).collect();
        let mut columns = vec![
            Column::number("epoch").rank(0),
            Column::number("parameters").rank(3),
            Column::number("model").rank(2),
            Column::number("all files").rank(1),
        ];
        columns.extend(titles.iter().map(|title| Column::number(title)));
        let has_deltas = self.epochs.iter().any(|epoch| epoch.base().is_some());
        if has_deltas {
            columns.insert(1, Column::number("delta of").rank(0));
        }
        table::write(&columns, &mut out, |rows| {
            for epoch in &self.epochs {
                let model = epoch.saved.files.iter().find(|file| file.name == "model.safetensors");
                let of_model = |cell: fn(&EpochFile) -> String| model.map(cell).unwrap_or_default();
                let metrics: BTreeMap<_, _> = epoch.metrics_by_title().collect();
                let base = epoch.base().map(|base| base.to_string()).unwrap_or_default();
                let mut cells = vec![
                    epoch.saved.number.to_string(),
                    of_model(|file| text::count(file.parameters)),
                    of_model(|file| text::size(file.bytes)),
                    text::size(epoch.saved.bytes),
                ];
                if has_deltas {
                    cells.insert(1, base);
                }
                let metrics = titles.iter().map(|title| metrics.get(title).cloned());
                rows.row(cells.into_iter().chain(metrics.map(Option::unwrap_or_default)));
            }
        })?;
        let bytes: u64 = self.epochs.iter().map(|epoch| epoch.saved.bytes).sum();
        let count = text::counted(self.epochs.len() as u64, "epoch");
        let directory = text::printable(&self.directory);
        writeln!(out, "\n{count} in {directory}: {}", text::size(bytes))?;
        for epoch in &self.epochs {
            if let Some(problem) = &epoch.saved.problem {
                let problem = text::printable(problem);
                writeln!(out, "epoch {} is not complete: {problem}", epoch.saved.number)?;
            }
        }
        Ok(())
    }
}

impl Epoch {
    fn base(&self) -> Option<u64> {
        self.saved.files.iter().filter_map(|file| file.base).max()
    }

    fn add_metrics(&mut self, logs: &Path) {
        for part in ["train", "valid"] {
            let directory = logs.join(part).join(format!("epoch-{}", self.saved.number));
            let logged = names(&directory).into_iter().filter_map(|name| {
                let metric = name.strip_suffix(".log")?.replace('_', " ");
                Some((metric, mean(&directory, &name)?))
            });
            let logged: BTreeMap<_, _> = logged.collect();
            if !logged.is_empty() {
                self.metrics.entry(part).or_default().extend(logged);
            }
        }
    }

    fn metrics_by_title(&self) -> impl Iterator<Item = (String, String)> {
        self.metrics.iter().flat_map(|(part, metrics)| {
            let cell = move |(name, value): (&String, &f64)| {
                (format!("{part} {}", text::short(name)), text::number(*value))
            };
            metrics.iter().map(cell)
        })
    }
}

/// Returns a metric's mean over an epoch, as burn computes it, or `None` if the log cannot be read
/// or has more than numbers.
fn mean(directory: &Path, log: &str) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    let log = next_to::open(directory, log).ok()?.filter(|log| log.byte_len() <= LOG)?;
    for line in BufReader::new(log.file().take(LOG)).lines() {
        let line = line.ok()?;
        let (value, of) = line.split_once(',').unwrap_or((&line, "1"));
        match (value, of) {
            ("", _) => continue,
            // The value of the whole epoch comes last.
            (value, "final") => (sum, count) = (value.parse().ok()?, 1.0),
            (value, of) => {
                let of: u32 = of.parse().ok()?;
                sum += value.parse::<f64>().ok()? * f64::from(of);
                count += f64::from(of);
            }
        }
    }
    (count > 0.0).then_some(sum / count)
}
