//! Weights of 8-bit floats and their scales: numbers as NumPy computes them, whole and in parts, and
//! refused where codes would be taken for numbers.

mod aliases;
mod numpy;
mod parts;
mod refusals;
mod rewriting;

use safetensors_core::checkpoint::store::MemoryFile;
use safetensors_core::checkpoint::{Assembled, Computed};

use crate::support::*;

/// The path of a file that `fixtures/scaled/generate.py` made.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/fixtures/scaled/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Returns the numbers of a fixture with settings for how many rows and columns share a scale.
fn numbers(name: &str, [rows, columns]: [usize; 2]) -> Checkpoint<Computed<Assembled<MemoryFile>>> {
    let file = fs::read(fixture(&format!("{name}.safetensors"))).unwrap();
    let config =
        format!(r#"{{"quantization_config": {{"weight_block_size": [{rows}, {columns}]}}}}"#);
    let files = [("m/model.safetensors", file), ("m/config.json", config.into_bytes())];
    let checkpoint = Checkpoint::open_in(MemoryStore::from_iter(files), "m", &Limits::default());
    checkpoint.unwrap().dequantized().unwrap()
}

fn fp8(shape: &[usize], codes: &[u8]) -> TensorBuf {
    TensorBuf::from_view(&TensorView::new(Dtype::F8_E4M3, shape, codes).unwrap()).unwrap()
}

/// The codes of 1 and 2.
fn codes() -> TensorBuf {
    fp8(&[1, 2], &[0x38, 0x40])
}

/// Makes scales with the value one half.
fn scales(shape: &[usize]) -> TensorBuf {
    TensorBuf::from_vec(shape.to_vec(), vec![0.5_f32; shape.iter().product()]).unwrap()
}

/// A checkpoint with these tensors, and these other names of them.
fn tied(tensors: &[(&str, TensorBuf)], aliases: &[(&str, &str)]) -> (TempDir, Checkpoint) {
    let (directory, path) = place("model.safetensors");
    let tensors = tensors.iter().map(|(name, buf)| (*name, buf));
    let options = SaveOptions::new().durable(false).metadata(aliases.iter().copied());
    save(&path, tensors, &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (directory, checkpoint)
}

/// A checkpoint with these tensors.
fn checkpoint(tensors: &[(&str, TensorBuf)]) -> (TempDir, Checkpoint) {
    tied(tensors, &[])
}

fn is_of_codes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Quantization { .. })
}
