//! Measures the cost of the command itself: starting, and showing a checkpoint of 100,000 tensors.
//!
//! Run it with `cargo bench -p safetensors-bridge-cli`. Each row is measured in turns with its
//! limit: the least work that gives the same result.
#![allow(missing_docs, reason = "a program, whose documentation is above")]

mod turns;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use safetensors_core::Checkpoint;
use turns::{row, status};

const SAMPLES: usize = 15;
const TENSORS: usize = 100_000;

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("many.safetensors");
    std::fs::write(&path, many_tensors())?;

    turns::title(SAMPLES);
    row(
        SAMPLES,
        ("safetensors --version", &|| run(&["--version".as_ref()])),
        ("limit: a process that does nothing", &|| status(&mut Command::new("true"), &[0])),
    )?;
    for arguments in [&["inspect"][..], &["inspect", "--flat"], &["inspect", "--json"], &["verify"]]
    {
        let command =
            || run(&arguments.iter().map(Path::new).chain([path.as_path()]).collect::<Vec<_>>());
        let name = format!("{}, {TENSORS} tensors", arguments.join(" "));
        row(SAMPLES, (&name, &command), ("limit: parsing the header", &|| parse(&path)))?;
    }
    Ok(())
}

fn run(arguments: &[&Path]) -> Result<()> {
    status(Command::new(env!("CARGO_BIN_EXE_safetensors")).args(arguments), &[0])
}

fn parse(path: &Path) -> Result<()> {
    ensure!(Checkpoint::open(path)?.len() == TENSORS, "not all tensors");
    Ok(())
}

/// Makes a file of 100,000 one-byte tensors.
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
