//! Structs of arrays: `#[derive(NamedArrays)]`.

mod borrowed;
mod generic;
mod hostile;
mod labels;
mod metadata;
mod nested;
mod round_trip;
mod strict;

use std::path::PathBuf;

use safetensors_core::error::Mismatch;
use safetensors_core::{Error, ErrorKind};
use safetensors_ndarray::Writer;

/// A directory that is removed at the end, and a path in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    crate::common::place("file.safetensors")
}

/// Makes a file that `write` fills.
fn file(write: impl FnOnce(&Writer)) -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = place();
    let writer = Writer::create(&path).unwrap();
    write(&writer);
    writer.finish().unwrap();
    (dir, path)
}

/// Returns the differences that an error lists.
fn mismatches(error: &Error) -> &[Mismatch] {
    match error.kind() {
        ErrorKind::Mismatches { mismatches } => mismatches,
        _ => panic!("{error}"),
    }
}

/// Returns the differences that an error lists, in words.
fn differences(error: &Error) -> Vec<String> {
    mismatches(error).iter().map(Mismatch::to_string).collect()
}
