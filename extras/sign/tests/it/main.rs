//! Signatures of models, with fixtures of the reference: `dev/scripts/signatures.py` writes them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bundles;
mod certificates;
mod files;
mod keys;

use std::fs;
use std::path::{Path, PathBuf};

use safetensors_sign::{Error, ErrorKind, Report, Verifier};
use tempfile::TempDir;

/// The model that the fixtures are about, as in the script.
const MODEL: [(&str, &[u8]); 6] = [
    ("a.b", b"dot"),
    ("a/c", b"slash"),
    ("config.json", b"{}"),
    ("empty", b""),
    ("h\u{e9} y:0:1", "\u{e9}".as_bytes()),
    ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      "),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(fixture(name)).unwrap()
}

/// Returns the model in a separate directory.
fn model() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in MODEL {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

/// Verifies the model with a key of the fixtures, by a signature of the fixtures.
fn verify(key: &str, signature: &str) -> Result<Report, Error> {
    Verifier::with_key(&text(key))?.verify(model().path(), fixture(signature))
}

/// Returns this crate's kind of the error.
fn kind(error: &Error) -> &ErrorKind {
    error.other().unwrap_or_else(|| panic!("{error}"))
}

/// Returns the report of an error that says that the files differ.
fn differences(result: Result<Report, Error>) -> Report {
    match kind(&result.unwrap_err()) {
        ErrorKind::FilesDiffer { report } => Report::clone(report),
        other => panic!("{other}"),
    }
}
