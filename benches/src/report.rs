//! The table, printed and as JSON.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::machine::Machine;
use crate::sample::{Goal, Measured, Role, Sample};

/// All rows that were measured.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    row: String,
    bytes: Option<u64>,
    in_page_cache: Option<f64>,
    contenders: Vec<Entry>,
    goals: Vec<Verdict>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    role: Role,
    median_seconds: f64,
    minimum_seconds: f64,
    /// The median over the samples of this contender's time divided by ours.
    of_ours: f64,
    peak_memory_bytes: Option<u64>,
    samples: Vec<Sample>,
}

#[derive(Serialize)]
struct Verdict {
    /// The contender that the goal is about.
    about: &'static str,
    goal: String,
    found: f64,
    reached: bool,
}

impl Report {
    pub fn empty() -> Self {
        Self { machine: Machine::this(), rows: Vec::new() }
    }

    pub fn add(&mut self, measured: Measured) {
        let ours = measured.contenders.iter().find(|((_, role), _)| *role == Role::Ours);
        let ours = ours.map(|(_, samples)| samples.clone()).unwrap_or_default();
        let entries = measured.contenders.into_iter().map(|((name, role), samples)| Entry {
            name,
            role,
            median_seconds: median(samples.iter().map(|sample| sample.seconds)),
            minimum_seconds: samples
                .iter()
                .map(|sample| sample.seconds)
                .fold(f64::INFINITY, f64::min),
            of_ours: median(
                samples.iter().zip(&ours).map(|(sample, ours)| sample.seconds / ours.seconds),
            ),
            peak_memory_bytes: samples.iter().filter_map(|sample| sample.growth).max(),
            samples,
        });
        let contenders: Vec<Entry> = entries.collect();
        let goals = measured.goals.iter().filter_map(|goal| verdict(goal, &contenders)).collect();
        self.rows.push(Line {
            row: measured.name,
            bytes: measured.bytes,
            in_page_cache: measured.in_cache,
            contenders,
            goals,
        });
    }

    /// Writes the numbers, with each sample, to a file. Makes its folder if needed.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }

    /// Replaces the table at the end of a document.
    pub fn write_into(&self, document: &Path) -> Result<()> {
        let text = std::fs::read_to_string(document)?;
        let (before, _) =
            text.split_once(HEADING).context("the document has no place for a table")?;
        Ok(std::fs::write(document, format!("{before}{HEADING}\n{self}\n"))?)
    }
}

/// The heading of the table in BENCHMARKS.md.
const HEADING: &str = "## The last table\n";

fn verdict(goal: &Goal, contenders: &[Entry]) -> Option<Verdict> {
    let of_ours = |name| Some(contenders.iter().find(|entry| entry.name == name)?.of_ours);
    let ours = contenders.iter().find(|entry| entry.role == Role::Ours)?;
    Some(match *goal {
        Goal::Faster(about, times) => {
            let found = of_ours(about)?;
            Verdict { about, goal: format!("≥ {times}×"), found, reached: found >= times }
        }
        Goal::OfLimit(about, share) => {
            let found = of_ours(about)?;
            Verdict { about, goal: format!("≥ {share} of it"), found, reached: found >= share }
        }
        Goal::Within(about, times) => {
            let found = of_ours(about)?;
            Verdict {
                about, goal: format!("≤ {times}× the time"), found, reached: found <= times
            }
        }
        Goal::Memory(bytes) => {
            let found = ours.peak_memory_bytes? as f64;
            let goal = format!("memory ≤ {}", size(bytes as f64));
            Verdict { about: ours.name, goal, found, reached: found <= bytes as f64 }
        }
        Goal::AtMost(what, found, most) => {
            let goal = format!("{what} {found:.3} ≤ {most}");
            Verdict { about: ours.name, goal, found, reached: found <= most }
        }
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "row", "by", "median", "minimum", "rate", "memory", "ours is", "to reach", "reached",
        ]);
        for column in 2..=6 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in &self.rows {
            for (i, entry) in line.contenders.iter().enumerate() {
                let name = if i == 0 { line.row.as_str() } else { "" };
                let ratio = match entry.role {
                    Role::Ours if i == 0 => String::new(),
                    Role::Ours => format!("takes {:.2}×", entry.of_ours),
                    Role::Peer => format!("{:.2}× as fast", entry.of_ours),
                    Role::Limit => format!("{:.2} of it", entry.of_ours),
                };
                let by = if entry.role == Role::Limit {
                    format!("limit: {}", entry.name)
                } else {
                    entry.name.into()
                };
                let goals: Vec<&Verdict> =
                    line.goals.iter().filter(|goal| goal.about == entry.name).collect();
                let join = |text: fn(&Verdict) -> &str| {
                    goals.iter().map(|goal| text(goal)).collect::<Vec<_>>().join("; ")
                };
                table.add_row([
                    name.to_owned(),
                    by,
                    duration(entry.median_seconds),
                    duration(entry.minimum_seconds),
                    line.bytes
                        .map_or(String::new(), |bytes| rate(bytes as f64 / entry.median_seconds)),
                    entry.peak_memory_bytes.map_or("-".into(), |bytes| size(bytes as f64)),
                    ratio,
                    join(|goal| &goal.goal),
                    join(|goal| if goal.reached { "yes" } else { "NO" }),
                ]);
            }
        }
        write!(f, "{table}")
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.2} µs", s * 1e6),
        s => format!("{:.1} ns", s * 1e9),
    }
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.2} GB/s", bytes_per_second / 1e9)
}

fn size(bytes: f64) -> String {
    format!("{:.0} MiB", (bytes / f64::from(1 << 20)).ceil())
}
