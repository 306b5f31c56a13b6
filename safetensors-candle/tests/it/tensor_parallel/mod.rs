//! Tensor parallelism: each rank gets its part of every weight, and reads nothing else.

mod parity;
mod parts;
mod reading;

use candle_core::{DType, Device, Tensor};
use safetensors_candle::{PartHint, TensorParallelBackend, TensorParallelVarBuilder};
use safetensors_core::{Checkpoint, LoadOptions, TensorBuf};
use tempfile::TempDir;

use crate::common;

use crate::common::place;

/// A backend over a checkpoint with these tensors.
fn backend(tensors: &[(&str, TensorBuf)]) -> (TempDir, TensorParallelBackend<'static>) {
    backend_with(tensors, &LoadOptions::new())
}

/// Makes a backend with options.
fn backend_with(
    tensors: &[(&str, TensorBuf)],
    options: &LoadOptions,
) -> (TempDir, TensorParallelBackend<'static>) {
    let (dir, path) = place("model.safetensors");
    common::save_bufs(&path, tensors);
    let checkpoint = Checkpoint::open(&path).unwrap();
    (dir, TensorParallelBackend::new_with(checkpoint, options).unwrap())
}

fn builder<'a, H: PartHint>(
    backend: &TensorParallelBackend<'a, H>,
    dtype: DType,
) -> TensorParallelVarBuilder<'a, H> {
    backend.var_builder(dtype, &Device::Cpu)
}

/// F32 values that count up.
fn counting(shape: &[usize]) -> TensorBuf {
    let values = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    TensorBuf::from_vec(shape.to_vec(), values).unwrap()
}

/// Returns the elements in C order.
fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}
