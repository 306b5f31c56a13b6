//! The table: printed, as CSV, and as JSON with all samples.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::machine::Machine;
use crate::sample::{Contender, Goal, Point, Role, Row, Sample};

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
    /// A row of loads has two lines.
    pub fn add(&mut self, name: &str, row: &Row, in_page_cache: Option<f64>) {
        let times: &[Times] =
            if row.loads > 1 { &[Times::First, Times::Again] } else { &[Times::All] };
        self.rows.extend(times.iter().map(|times| times.line(name, row, in_page_cache)));
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

/// The samples that a line is about.
#[derive(Clone, Copy, PartialEq)]
enum Times {
    /// All of them.
    All,
    /// The first of each process.
    First,
    /// The later ones of each process.
    Again,
}

impl Times {
    fn line(self, name: &str, row: &Row, in_page_cache: Option<f64>) -> Line {
        let (when, process) = match self {
            Self::All => ("", ""),
            Self::First => (", first load", " in a process"),
            Self::Again => (", again", " in the same process"),
        };
        let entries = row.contenders.iter().map(|contender| self.entry(contender, row));
        let contenders: Vec<Entry> = entries.collect();
        let family = |point: &Point| Point { family: point.family.clone() + when, ..*point };
        Line {
            row: format!("{name}{when}{process}"),
            point: row.point.as_ref().map(family),
            bytes: row.bytes,
            in_page_cache,
            goals: row.goals.iter().filter_map(|goal| self.verdict(*goal, &contenders)).collect(),
            contenders,
        }
    }

    fn samples(self, contender: &Contender) -> &[Sample] {
        if self == Self::Again { &contender.again } else { &contender.samples }
    }

    fn entry(self, contender: &Contender, row: &Row) -> Entry {
        let samples = self.samples(contender);
        let ours = row.contenders.iter().find(|contender| contender.role == Role::Ours);
        let pairs = samples.iter().zip(ours.map_or(&[][..], |ours| self.samples(ours)));
        let seconds = sorted(samples.iter().map(|sample| sample.seconds));
        Entry {
            name: contender.name,
            role: contender.role,
            median_seconds: median(&seconds),
            minimum_seconds: seconds.first().copied().unwrap_or(f64::NAN),
            of_ours: median(&sorted(pairs.map(|(sample, ours)| sample.seconds / ours.seconds))),
            peak_memory_bytes: samples.iter().filter_map(|sample| sample.growth).max(),
            samples: samples.to_vec(),
        }
    }

    fn verdict(self, goal: Goal, contenders: &[Entry]) -> Option<Verdict> {
        let (about, goal, found, reached) = match goal {
            Goal::AtLeast(about, least) => {
                let entry = contenders.iter().find(|entry| entry.name == about)?;
                let of = if entry.role == Role::Limit { " of it" } else { "×" };
                (about, format!("≥ {least}{of}"), entry.of_ours, entry.of_ours >= least)
            }
            Goal::EachTime(first, again) => {
                let least = if self == Self::Again { again } else { first };
                let (fastest, found) = against_peers(contenders)?;
                let goal = format!("each time ≥ {least}× ({found:.2})");
                (fastest, goal, found, found >= least)
            }
            // Memory that the process has kept is no growth.
            Goal::Memory(_) if self == Self::Again => return None,
            Goal::Memory(bytes) => {
                let ours = contenders.iter().find(|entry| entry.role == Role::Ours)?;
                let found = ours.peak_memory_bytes?;
                let goal = format!("memory ≤ {}", size(bytes));
                (ours.name, goal, found as f64, found <= bytes)
            }
        };
        Some(Verdict { about, goal, found, reached })
    }
}

/// Returns the fastest peer, and the least ratio of any peer's time to ours in one round.
fn against_peers(contenders: &[Entry]) -> Option<(&'static str, f64)> {
    let ours = contenders.iter().find(|entry| entry.role == Role::Ours)?;
    let peers = || contenders.iter().filter(|entry| entry.role == Role::Peer);
    let fastest = peers().min_by(|a, b| a.median_seconds.total_cmp(&b.median_seconds))?;
    let pairs = peers().flat_map(|peer| peer.samples.iter().zip(&ours.samples));
    Some((fastest.name, pairs.map(|(peer, ours)| peer.seconds / ours.seconds).reduce(f64::min)?))
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
