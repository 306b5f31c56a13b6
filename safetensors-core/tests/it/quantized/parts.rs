//! What the tests of small checkpoints share: their tensors, and the numbers that come out.

use safetensors_core::{Checkpoint, Dtype, LoadOptions, TensorBuf, TensorView};

pub(super) type Tensors = Vec<(&'static str, TensorBuf)>;

/// A tensor of bytes, the last of which is repeated.
pub(super) fn raw(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> TensorBuf {
    let len = (shape.iter().product::<usize>() * dtype.bits() as usize).div_ceil(8);
    let mut all = bytes.to_vec();
    all.resize(len, bytes.last().copied().unwrap_or(0));
    TensorBuf::from_view(&TensorView::new(dtype, shape, &all).unwrap()).unwrap()
}

pub(super) fn floats(shape: &[usize], values: &[f32]) -> TensorBuf {
    TensorBuf::from_vec(shape.to_vec(), values.to_vec()).unwrap()
}

pub(super) fn words(shape: &[usize], values: &[u32]) -> TensorBuf {
    let bytes: Vec<_> = values.iter().flat_map(|word| word.to_le_bytes()).collect();
    raw(Dtype::I32, shape, &bytes)
}

/// 1 and 2 in F8_E4M3.
pub(super) const ONE: u8 = 0x38;
pub(super) const TWO: u8 = 0x40;

/// The names of a file of numbers, and the values of one tensor.
pub(super) fn numbers(
    checkpoint: Checkpoint,
    name: &str,
) -> Result<(Vec<String>, Vec<f32>), String> {
    let checkpoint = checkpoint.dequantized().map_err(|error| error.to_string())?;
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name().to_owned()).collect();
    names.sort_unstable();
    let tensor = checkpoint.tensor(name).map_err(|error| error.to_string())?;
    let read = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32));
    let read = read.map_err(|error| error.to_string())?;
    Ok((names, read.into_vec().unwrap()))
}
