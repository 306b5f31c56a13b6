//! Quantised weights and their scales: dequantised as NumPy does it, whole and in parts, refused
//! where they would be converted without their scales.

mod aliases;
mod numpy;
mod parts;
mod refusals;
mod rewriting;

use std::path::PathBuf;

use safetensors_core::convert::ScaledWeights;
use safetensors_core::slice::TensorPart;
use safetensors_core::{
    Checkpoint, ConvertOptions, LoadOptions, ReadAt, Result, SaveOptions, TensorBuf, save,
};
use tempfile::TempDir;

/// Reads part of the tensor of this name.
fn read_part<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    name: &str,
    part: TensorPart,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    checkpoint.tensor(name)?.slice(part)?.read_with(options)
}

/// The path of a file that `fixtures/scaled/generate.py` made.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/fixtures/scaled/{name}", env!("CARGO_MANIFEST_DIR")))
}

fn dequantize() -> LoadOptions {
    LoadOptions::new().scaled_weights(ScaledWeights::Dequantize)
}

/// [`dequantize`], with scales of blocks of this size.
fn dequantize_blocks(rows: usize, columns: usize) -> LoadOptions {
    dequantize().convert_options(ConvertOptions::new().scale_block(rows, columns))
}

/// A checkpoint with these tensors.
fn checkpoint(tensors: &[(&str, TensorBuf)]) -> (TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let tensors = tensors.iter().map(|(name, buf)| (*name, buf));
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (directory, checkpoint)
}
