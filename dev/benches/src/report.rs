//! The table: printed, as CSV, and as JSON with all samples.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::machine::Machine;
use crate::sample::{Goal, Point, Role, Row, Sample};

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

    /// Adds a row after it was measured, with the share of its files that was in the page cache.
    pub fn add(&mut self, name: String, row: Row, in_page_cache: Option<f64>) {
        let ours = row.contenders.iter().find(|contender| contender.role == Role::Ours);
        let ours = ours.map(|ours| ours.samples.clone()).unwrap_or_default();
        let entries = row.contenders.into_iter().map(|contender| {
            let seconds = sorted(contender.samples.iter().map(|sample| sample.seconds));
            let pairs = contender.samples.iter().zip(&ours);
            let of_ours = sorted(pairs.map(|(sample, ours)| sample.seconds / ours.seconds));
            Entry {
                name: contender.name,
                role: contender.role,
                median_seconds: median(&seconds),
                minimum_seconds: seconds.first().copied().unwrap_or(f64::NAN),
                of_ours: median(&of_ours),
                least_of_ours: of_ours.first().copied().unwrap_or(f64::NAN),
                peak_memory_bytes: contender.samples.iter().filter_map(|it| it.growth).max(),
                samples: contender.samples,
            }
        });
        let contenders: Vec<Entry> = entries.collect();
        let goals = row.goals.iter().filter_map(|goal| verdict(*goal, &contenders)).collect();
        self.rows.push(Line {
            row: name,
            point: row.point,
            bytes: row.bytes,
            in_page_cache,
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

    /// Writes the table as CSV. Each line has the name of its row.
    pub fn write_csv(&self, path: &Path) -> Result<()> {
        let mut table = csv::Writer::from_path(path)?;
        table.write_record(COLUMNS)?;
        for line in &self.rows {
            for (i, entry) in line.contenders.iter().enumerate() {
                let mut cells = cells(line, entry, i == 0);
                cells[0].clone_from(&line.row);
                table.write_record(cells)?;
            }
        }
        Ok(table.flush()?)
    }
}

const COLUMNS: [&str; 9] =
    ["row", "by", "median", "minimum", "rate", "memory", "ours is", "to reach", "reached"];

fn verdict(goal: Goal, contenders: &[Entry]) -> Option<Verdict> {
    let named = |name| contenders.iter().find(|entry| entry.name == name);
    Some(match goal {
        Goal::AtLeast(about, least) => {
            let entry = named(about)?;
            let goal = match entry.role {
                Role::Limit => format!("≥ {least} of it"),
                _ => format!("≥ {least}×"),
            };
            Verdict { about, goal, found: entry.of_ours, reached: entry.of_ours >= least }
        }
        Goal::NeverSlower(about) => {
            let found = named(about)?.least_of_ours;
            let goal = format!("each time ≥ 1× ({found:.2})");
            Verdict { about, goal, found, reached: found >= 1.0 }
        }
        Goal::Memory(bytes) => {
            let ours = contenders.iter().find(|entry| entry.role == Role::Ours)?;
            let found = ours.peak_memory_bytes? as f64;
            let goal = format!("memory ≤ {}", size(bytes));
            Verdict { about: ours.name, goal, found, reached: found <= bytes as f64 }
        }
    })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the median of sorted values.
fn median(values: &[f64]) -> f64 {
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(COLUMNS);
        for column in 2..=6 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in &self.rows {
            for (i, entry) in line.contenders.iter().enumerate() {
                table.add_row(cells(line, entry, i == 0));
            }
        }
        write!(f, "{table}")
    }
}

/// Returns the cells of a contender. The first one of a row has the row's name, and is compared
/// with nothing.
fn cells(line: &Line, entry: &Entry, is_first: bool) -> [String; 9] {
    let goals = || line.goals.iter().filter(|goal| goal.about == entry.name);
    let reached = goals().map(|goal| if goal.reached { "yes" } else { "NO" });
    let rate = line.bytes.map(|bytes| bytes as f64 / entry.median_seconds / 1e9);
    [
        if is_first { line.row.clone() } else { String::new() },
        match entry.role {
            Role::Limit => format!("limit: {}", entry.name),
            _ => entry.name.into(),
        },
        duration(entry.median_seconds),
        duration(entry.minimum_seconds),
        rate.map_or(String::new(), |rate| format!("{rate:.2} GB/s")),
        entry.peak_memory_bytes.map_or("-".into(), size),
        match entry.role {
            _ if is_first => String::new(),
            Role::Limit => format!("{:.2} of it", entry.of_ours),
            _ => format!("{:.2}× as fast", entry.of_ours),
        },
        goals().map(|goal| goal.goal.as_str()).collect::<Vec<_>>().join("; "),
        reached.collect::<Vec<_>>().join("; "),
    ]
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.2} µs", s * 1e6),
        s => format!("{:.1} ns", s * 1e9),
    }
}

fn size(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
