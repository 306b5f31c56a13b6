//! Measures loading, saving, parsing and converting, compared with other crates, and with the
//! limit: the least work that the machine must do for the same result.
//!
//! ```text
//! cargo bench -p benches                              # every row
//! cargo bench -p benches -- header burn               # the rows whose name contains one of these words
//! cargo bench -p benches -- --help                    # the other arguments
//! ```
//!
//! docs/benchmarks.csv is the last table, and docs/BENCHMARKS.md explains how to read it.

mod rows;
mod timed;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use harness::data::Data;
use harness::report::Report;

/// Measures this workspace and other crates, against the limits of the machine.
#[derive(Parser)]
struct Args {
    /// Measures only rows with one of these words in their name.
    words: Vec<String>,
    /// Prints the names of the rows.
    #[arg(long)]
    list: bool,
    /// Writes the numbers and all samples to this file.
    #[arg(long, default_value = "target/bench/table.json")]
    json: PathBuf,
    /// Writes the table to this file. After docs/benchmarks.csv, run dev/scripts/speed_picture.py.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Writes the test data to this folder, not to the temporary one.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Does work on one file or address once, and prints its time and its memory.
    #[arg(long, num_args = 2, value_names = ["WORK", "WHAT"])]
    timed: Vec<String>,
    /// Takes samples, in the process that was started for it.
    #[arg(long, num_args = 3, hide = true)]
    child: Vec<String>,
    /// Cargo adds this.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    // Cargo starts a benchmark in its package. Paths in the arguments are relative to the root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    let args = Args::parse();
    let mut rows = rows::all();
    if let [row, contender, data] = &args.child[..] {
        let row = rows.iter().find(|candidate| candidate.name == *row).context("no such row")?;
        let measured = row.build(&Data::existing(data.into()))?.measure_one(contender)?;
        println!("{}", serde_json::to_string(&measured)?);
        return Ok(());
    }
    if let [work, what] = &args.timed[..] {
        println!("{}", timed::run(work, what)?);
        return Ok(());
    }

    let words: Vec<_> = args.words.iter().map(|word| word.to_lowercase()).collect();
    rows.retain(|row| {
        let name = row.name.to_lowercase();
        words.is_empty() || words.iter().any(|word| name.contains(word))
    });
    if args.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    let started = Instant::now();
    let data = Data::create(args.dir.as_deref())?;
    let (mut report, mut missing) = (Report::empty(), Vec::new());
    for spec in rows {
        eprintln!("{:>4} s  {}", started.elapsed().as_secs(), spec.name);
        let mut row = match spec.build(&data) {
            Ok(row) => row,
            Err(error) => {
                eprintln!("NOT MEASURED: {error:#}");
                missing.push(spec.name);
                continue;
            }
        };
        let cached = row.measure(&spec.name, data.path()).with_context(|| spec.name.clone())?;
        report.add(&spec.name, &row, cached);
        // After each row, so that nothing is lost if a later one fails.
        report.write_json(&args.json)?;
        args.csv.as_deref().map_or(Ok(()), |path| report.write_csv(path))?;
    }
    println!("{report}");
    println!("Took {} s.", started.elapsed().as_secs());
    println!("As JSON: {}", args.json.display());
    ensure!(missing.is_empty(), "not measured: {}", missing.join("; "));
    Ok(())
}
