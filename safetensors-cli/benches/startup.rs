//! Measures what the command itself costs: starting, and showing a checkpoint of 100,000 tensors.
//!
//! Run it with `cargo bench -p safetensors-bridge-cli`. Each row is measured in turns with its
//! limit: the least work that gives the same result.
#![allow(missing_docs, reason = "a program, whose documentation is above")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use safetensors_core::Checkpoint;

const SAMPLES: usize = 15;
const TENSORS: usize = 100_000;

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("many.safetensors");
    std::fs::write(&path, many_tensors())?;

    println!("{:<34}{:>10}{:>10}   of {SAMPLES} samples", "row", "median", "minimum");
    row(
        ("safetensors --version", &|| run(&["--version".as_ref()])),
        ("limit: a process that does nothing", &|| status(&mut Command::new("true"))),
    )?;
    for arguments in [&["inspect"][..], &["inspect", "--flat"], &["inspect", "--json"], &["verify"]]
    {
        let command =
            || run(&arguments.iter().map(Path::new).chain([path.as_path()]).collect::<Vec<_>>());
        let name = format!("{}, {TENSORS} tensors", arguments.join(" "));
        row((&name, &command), ("limit: parsing the header", &|| parse(&path)))?;
    }
    Ok(())
}

/// The name of a measurement, and its work.
type Contender<'a> = (&'a str, &'a dyn Fn() -> Result<()>);

/// Measures two things in turns and prints a line for each.
fn row(ours: Contender<'_>, limit: Contender<'_>) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..SAMPLES {
        for ((_, run), times) in [ours, limit].iter().zip(&mut times) {
            let started = Instant::now();
            run()?;
            times.push(started.elapsed());
        }
    }
    for ((name, _), mut times) in [ours, limit].into_iter().zip(times) {
        times.sort_unstable();
        let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        println!(
            "{name:<34}{:>10}{:>10}",
            milliseconds(times[SAMPLES / 2]),
            milliseconds(times[0])
        );
    }
    Ok(())
}

fn run(arguments: &[&Path]) -> Result<()> {
    status(Command::new(env!("CARGO_BIN_EXE_safetensors")).args(arguments))
}

fn status(command: &mut Command) -> Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

fn parse(path: &Path) -> Result<()> {
    ensure!(Checkpoint::open(path)?.len() == TENSORS, "not all tensors");
    Ok(())
}

/// A file of 100,000 tensors of one byte.
fn many_tensors() -> Vec<u8> {
    let mut json = String::from("{");
    for i in 0..TENSORS {
        let (comma, layer, expert) = (if i == 0 { "" } else { "," }, i / 256, i % 256);
        // Writing to a `String` cannot fail.
        let _ = write!(
            json,
            r#"{comma}"model.layers.{layer}.mlp.experts.{expert}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#,
            i + 1
        );
    }
    json.push('}');
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &vec![0; TENSORS]].concat()
}
