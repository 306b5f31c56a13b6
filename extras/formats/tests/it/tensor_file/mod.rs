//! Files of other formats as checkpoints: files of PyTorch, NumPy and the package `gguf`, compared
//! with the libraries' values in memory. `dev/scripts/other_formats.py` makes the fixtures.

#![cfg_attr(
    not(any(feature = "gguf", feature = "pytorch")),
    allow(dead_code, reason = "the fixtures of these formats")
)]

#[cfg(feature = "pytorch")]
mod arrays;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gguf")]
mod gguf_file;
#[cfg(feature = "gguf")]
mod gguf_modules;
#[cfg(feature = "gguf")]
mod gguf_types;
mod hostile;
mod model_configs;
#[cfg(feature = "pytorch")]
mod parts;
#[cfg(all(feature = "gguf", feature = "pytorch"))]
mod polyglot;
#[cfg(feature = "pytorch")]
mod pytorch;
#[cfg(feature = "pytorch")]
mod rebuilt;
#[cfg(feature = "pytorch")]
mod script;
#[cfg(feature = "pytorch")]
mod settings;
#[cfg(feature = "pytorch")]
mod shared;
#[cfg(feature = "gguf")]
mod split;
#[cfg(feature = "pytorch")]
mod training;

use std::path::{Path, PathBuf};

use safetensors_core::{Checkpoint, ReadAt};
use safetensors_formats::{Options, TensorFile};

use crate::support::parts;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Compares a file with the safetensors file of its content. Names of tied tensors count.
#[track_caller]
fn assert_same(checkpoint: &Checkpoint<TensorFile>, expected: &Checkpoint) {
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    names.extend(checkpoint.aliases().map(|(alias, _)| alias));
    let mut all: Vec<_> = expected.tensors().map(|tensor| tensor.name()).collect();
    names.sort_unstable();
    all.sort_unstable();
    assert_eq!(names, all);
    for name in all {
        let found = parts(checkpoint.tensor(name).unwrap().read());
        assert!(found == parts(expected.tensor(name).unwrap().read()), "{name}");
    }
}

/// Opens a fixture, and compares it with its content.
#[track_caller]
fn assert_fixture(name: &str, options: &Options) -> Checkpoint<TensorFile> {
    let path = fixture(name);
    let checkpoint = safetensors_formats::open(&path, options).unwrap();
    let expected = Checkpoint::open(path.with_extension("safetensors")).unwrap();
    assert_same(&checkpoint, &expected);
    assert_any_range(checkpoint.files()[0].safetensors().source());
    checkpoint
}

/// Reads ranges of all lengths that begin anywhere, across the borders of tensors.
#[track_caller]
pub(crate) fn assert_any_range(file: &TensorFile) {
    let mut whole = vec![0; file.byte_len() as usize];
    if file.read_exact_at(&mut whole, 0).is_err() {
        return;
    }
    for len in [1, 2, 3, 5, 8, 13, 100, 1021] {
        for start in (0..whole.len()).step_by(7) {
            let len = len.min(whole.len() - start);
            let mut part = vec![0; len];
            file.read_exact_at(&mut part, start as u64).unwrap();
            assert!(part == whole[start..start + len], "{len} bytes from {start} on");
        }
    }
    let past = file.read_exact_at(&mut [0; 2], file.byte_len() - 1);
    assert_eq!(past.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(file.read_exact_at(&mut [0], u64::MAX).is_err());
}

/// Returns the error of opening a file of these bytes.
#[track_caller]
fn refused(bytes: &[u8], options: &Options) -> String {
    let opened = TensorFile::from_source(bytes.to_vec(), "a file", options);
    let error = opened.expect_err("the file is malformed").to_string();
    assert!(error.starts_with("a file: "), "{error}");
    error
}
