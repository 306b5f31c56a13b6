//! Measures loading, saving, parsing and converting beside other crates, and beside the limit: the
//! least work that the machine must do for the same result.
//!
//! ```text
//! cargo bench -p benches                              # every row
//! cargo bench -p benches -- header burn               # the rows whose name contains one of these words
//! cargo bench -p benches -- --list                    # the names of the rows
//! cargo bench -p benches -- --json table.json         # the file for the numbers, besides the printed table
//! cargo bench -p benches -- --into docs/BENCHMARKS.md      # replaces the table in that file, and what
//!                                                     # the README shows of it
//! cargo bench -p benches -- --dir /mnt/disk           # the folder for the test data, not the temporary one
//! cargo bench -p benches -- scaling --plot docs/scale.svg    # draws how time and memory grow
//! ```
//!
//! docs/BENCHMARKS.md has the last table, and explains how to read it.

mod rows;
mod timed;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::args::{Args, Child, Timed};
use harness::data::Data;
use harness::report::Report;

fn main() -> Result<()> {
    // Cargo starts a benchmark in its package. Paths in the arguments are relative to the root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    let args = Args::parse(std::env::args().skip(1))?;
    if let Some(Child { row, contender, data }) = args.child {
        let row = rows::all()
            .into_iter()
            .find(|candidate| candidate.name == row)
            .context("no such row")?;
        let measured = row.build(&Data::existing(data))?.measure_one(&contender)?;
        println!("{}", serde_json::to_string(&measured)?);
        return Ok(());
    }
    if let Some(Timed { work, what }) = args.timed {
        println!("{}", timed::run(&work, &what)?);
        return Ok(());
    }

    let mut rows = rows::all();
    rows.retain(|row| args.selects(&row.name));
    if args.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    let started = Instant::now();
    let data = Data::create(args.dir.as_deref())?;
    let mut report = Report::empty();
    for row in rows {
        eprintln!("{:>4} s  {}", started.elapsed().as_secs(), row.name);
        let built = row.build(&data).with_context(|| row.name.clone())?;
        report.add(built.measure(&row.name, &data).with_context(|| row.name.clone())?);
    }
    println!("{report}");
    println!("Took {} s.", started.elapsed().as_secs());
    report.write_json(&args.json)?;
    println!("As JSON: {}", args.json.display());
    if let Some(file) = args.into {
        report.write_into(&file)?;
        if file == Path::new("docs/BENCHMARKS.md") {
            draw(&[], "docs/speed.svg and the table of the README")?;
        }
    }
    if let Some(picture) = args.plot {
        draw(
            &["--growth".as_ref(), args.json.as_ref(), picture.as_ref()],
            "the picture of growth",
        )?;
    }
    Ok(())
}

/// Has the script draw a picture, after the numbers were written.
fn draw(args: &[&OsStr], picture: &str) -> Result<()> {
    const SCRIPT: &str = "dev/scripts/speed_picture.py";
    let drawn = Command::new(SCRIPT).args(args).status();
    let drawn = drawn.with_context(|| format!("{SCRIPT} draws {picture}"))?;
    ensure!(drawn.success(), "{picture}: the old one stays");
    Ok(())
}
