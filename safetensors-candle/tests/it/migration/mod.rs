//! The tables of the module `migration`, line by line: candle's own function and what takes its
//! place give the same, or differ as the table says. Each line of a table has its function here.
#![allow(unsafe_code, reason = "candle's own loader maps the file")]

mod building;
mod loading;
mod saving;
mod stricter;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors_candle::{
    Checkpoint, IntoCandle, LazyTensor, SaveOptions, ShardOptions, save, save_sharded,
};
use tempfile::TempDir;

use crate::common::bytes;

const CPU: Device = Device::Cpu;

/// The files that the lines read and write.
struct Files {
    dir: TempDir,
    /// One file.
    file: PathBuf,
    /// A directory of shards.
    sharded: PathBuf,
}

/// What a line does. It panics, or fails with candle's error.
type Line = fn(&Files) -> candle_core::Result<()>;

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, sharded) = (dir.path().join("model.safetensors"), dir.path().join("sharded"));
        let options = SaveOptions::new().durable(false);
        save(&file, &tensors(), &options).unwrap();
        let shards = ShardOptions::new().max_shard_size(32.into()).save_options(options);
        save_sharded(&sharded, &tensors(), &shards).unwrap();
        Self { dir, file, sharded }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap()
    }

    /// The shards, in order.
    fn shards(&self) -> Vec<PathBuf> {
        let index = Checkpoint::open(&self.sharded).unwrap();
        let shards: Vec<_> = index.files().iter().map(|file| file.path().to_owned()).collect();
        assert!(shards.len() > 1);
        shards
    }
}

fn tensors() -> BTreeMap<String, Tensor> {
    let numbers = |count| Tensor::arange(0_f32, count as f32, &CPU).unwrap();
    BTreeMap::from([
        ("fc.weight".into(), numbers(8).reshape((4, 2)).unwrap()),
        ("fc.bias".into(), (numbers(4) * 0.5).unwrap()),
        ("ids".into(), Tensor::new(&[3_i64, -1], &CPU).unwrap()),
    ])
}

/// Whether two tensors have the same shape, dtype and bits.
#[track_caller]
fn assert_same(ours: &Tensor, theirs: &Tensor) {
    assert_eq!((ours.dtype(), ours.dims()), (theirs.dtype(), theirs.dims()));
    assert!(bytes(ours) == bytes(theirs), "{ours} {theirs}");
}

/// A file that PyTorch wrote.
fn pytorch_file() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../safetensors-formats/tests/fixtures/pytorch/tied.pt")
}

fn lazy<'a, S>(
    checkpoint: &'a Checkpoint<S>,
    name: &str,
) -> candle_core::Result<LazyTensor<'a, S>> {
    checkpoint.tensor(name).into_candle()
}

/// The first cells of the lines of a table of the documentation.
fn lines(heading: &str) -> Vec<&'static str> {
    let (_, section) = include_str!("../../../src/migration.rs").split_once(heading).unwrap();
    let section = section.split("//! # ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("//! | "));
    lines.skip(1).map(|line| line.split(" | ").next().unwrap()).collect()
}

#[test]
fn each_line_of_the_tables_is_true() {
    let files = Files::new();
    for (heading, table) in [
        ("# Building a model\n", building::LINES),
        ("# Loading tensors\n", loading::LINES),
        ("# Saving tensors\n", saving::LINES),
        ("# Where this crate is stricter\n", stricter::LINES),
    ] {
        let named: Vec<_> = table.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines(heading), named, "{heading}");
        for (line, check) in table {
            check(&files).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
