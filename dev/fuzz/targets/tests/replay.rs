//! Runs every fuzz target on its seeds and on the inputs of all past findings.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use safetensors_fuzz::TARGETS;

/// Returns the files of a folder, sorted; none if it is not there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn seeds_and_past_findings_pass() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut failed = Vec::new();
    for (name, run) in TARGETS {
        let seeds = files(&fuzz.join("seeds").join(name));
        assert!(seeds.len() >= 3, "{name} has {} seeds", seeds.len());
        run(&[]);
        for file in seeds.into_iter().chain(files(&fuzz.join("findings").join(name))) {
            let input = fs::read(&file).unwrap();
            assert!(input.len() < 1 << 14, "{} is too large to be kept", file.display());
            if catch_unwind(|| run(&input)).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "these inputs make their target panic: {failed:#?}");
}

/// Every folder of seeds or findings belongs to a target.
#[test]
fn no_input_is_forgotten() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in files(&fuzz.join("seeds")).into_iter().chain(files(&fuzz.join("findings"))) {
        let name = folder.file_name().unwrap();
        let known = TARGETS.iter().any(|(target, _)| name == *target) || name == "README.md";
        assert!(known, "{} belongs to no target", folder.display());
    }
}
