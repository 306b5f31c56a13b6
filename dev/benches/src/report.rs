//! The table, printed and as JSON.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::machine::Machine;
use crate::sample::{Goal, Measured, Point, Role, Sample};

/// All rows that were measured.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    row: String,
    point: Option<Point>,
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
    /// The least of them.
    least_of_ours: f64,
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
        let entries = measured.contenders.into_iter().map(|((name, role), samples)| {
            let seconds = sorted(samples.iter().map(|sample| sample.seconds));
            let pairs = samples.iter().zip(&ours);
            let of_ours = sorted(pairs.map(|(sample, ours)| sample.seconds / ours.seconds));
            Entry {
                name,
                role,
                median_seconds: quantile(&seconds, 0.5),
                minimum_seconds: quantile(&seconds, 0.0),
                of_ours: quantile(&of_ours, 0.5),
                least_of_ours: quantile(&of_ours, 0.0),
                peak_memory_bytes: samples.iter().filter_map(|sample| sample.growth).max(),
                samples,
            }
        });
        let contenders: Vec<Entry> = entries.collect();
        let goals = measured.goals.iter().filter_map(|goal| verdict(goal, &contenders)).collect();
        self.rows.push(Line {
            row: measured.name,
            point: measured.point,
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

/// The heading of the table in docs/BENCHMARKS.md.
const HEADING: &str = "## The last table\n";

fn verdict(goal: &Goal, contenders: &[Entry]) -> Option<Verdict> {
    let of_ours = |name| Some(contenders.iter().find(|entry| entry.name == name)?.of_ours);
    let ours = contenders.iter().find(|entry| entry.role == Role::Ours)?;
    Some(match *goal {
        Goal::Faster(about, times) => {
            let found = of_ours(about)?;
            Verdict { about, goal: format!("≥ {times}×"), found, reached: found >= times }
        }
        Goal::NeverSlower(about) => {
            let found = contenders.iter().find(|entry| entry.name == about)?.least_of_ours;
            let goal = format!("each time ≥ 1× ({found:.2})");
            Verdict { about, goal, found, reached: found >= 1.0 }
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

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which this share of sorted values lies, between two of them if need be.
fn quantile(values: &[f64], share: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
    below + (above - below) * place.fract()
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
        write!(f, "{table}")?;
        self.distributions().map_or(Ok(()), |table| write!(f, "\n\n{table}"))
    }
}

impl Report {
    /// How the samples of a row are distributed, for rows with many of them.
    fn distributions(&self) -> Option<Table> {
        const MANY: usize = 20;
        const SHARES: [(&str, f64); 6] = [
            ("minimum", 0.0),
            ("10 %", 0.1),
            ("median", 0.5),
            ("90 %", 0.9),
            ("maximum", 1.0),
            ("ours is, at least", f64::NAN),
        ];
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["row", "by"].into_iter().chain(SHARES.map(|(name, _)| name)));
        for line in &self.rows {
            for entry in line.contenders.iter().filter(|entry| entry.samples.len() >= MANY) {
                let seconds = sorted(entry.samples.iter().map(|sample| sample.seconds));
                let cells = SHARES.map(|(_, share)| match entry.role {
                    Role::Ours if share.is_nan() => String::new(),
                    _ if share.is_nan() => format!("{:.2}× as fast", entry.least_of_ours),
                    _ => duration(quantile(&seconds, share)),
                });
                table.add_row([line.row.clone(), entry.name.into()].into_iter().chain(cells));
            }
        }
        (!table.is_empty()).then_some(table)
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
