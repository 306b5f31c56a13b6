//! The tables of the module `migration`, line by line: candle's own function and its replacement
//! give the same result, or differ as the table says. Each line of a table has its function here.
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
    Checkpoint, IntoCandle, LazyTensor, ReadAt, SaveOptions, ShardOptions, save, save_sharded,
};
use safetensors_testing::tables::assert_lines;
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

/// The test of a line. It panics, or fails with candle's error.
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

    /// Returns the shards, in order.
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
    package.join("../extras/formats/tests/fixtures/pytorch/tied.pt")
}

fn lazy<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    name: &str,
) -> candle_core::Result<LazyTensor<'a, S>> {
    checkpoint.tensor(name).into_candle()
}

/// The tests of `gguf`, and `candle_gguf` of the examples with models, have the first four.
/// `safetensors-formats` documents how the next two are read. For the last one
/// `tests/it/loader/failures.rs` of the core changes files; candle's process would be killed.
const OF_MODELS: &[&str] = &[
    "`from_gguf` of a quantised model of candle-transformers",
    "`quantized_var_builder::VarBuilder::from_gguf` of candle-transformers",
];
const OF_GGUF: &[&str] = &[
    "`quantized::gguf_file::Content::read`",
    "its `tensor(reader, name, device)`",
    "`quantized::ggml_file`",
    "`quantized::imatrix_file`",
];
const OF_CORE: &[&str] = &["a file that changes while it is loaded"];

#[test]
fn each_line_of_the_tables_is_true() {
    let files = Files::new();
    for (heading, table, elsewhere) in [
        ("# Building a model\n", building::LINES, OF_MODELS),
        ("# Loading tensors\n", loading::LINES, OF_GGUF),
        ("# Saving tensors\n", saving::LINES, &[]),
        ("# Where this crate is stricter\n", stricter::LINES, OF_CORE),
    ] {
        let source = include_str!("../../../src/migration.rs");
        assert_lines(source, heading, table.iter().map(|(line, _)| *line), elsewhere);
        for (line, check) in table {
            check(&files).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
