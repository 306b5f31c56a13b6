//! Tensor parallelism: each rank gets its part of every weight, and reads nothing else.

mod parity;
mod parts;
mod reading;
mod scaled;

use candle_core::{DType, Device, Tensor};
use candle_nn::var_builder::VarBuilderArgs;
use safetensors_candle::{PartHint, TensorParallelBackend, TensorParallelVarBuilder};
use safetensors_core::{Checkpoint, ReadAt, TensorBuf};
use tempfile::TempDir;

use crate::common;

/// A backend over a checkpoint with these tensors.
fn backend(tensors: &[(&str, TensorBuf)]) -> (TempDir, TensorParallelBackend) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    common::save_bufs(&path, tensors);
    (dir, TensorParallelBackend::new(Checkpoint::open(&path).unwrap()))
}

fn builder<'a, H: PartHint + 'a, S: ReadAt + 'a>(
    backend: &TensorParallelBackend<H, S>,
    dtype: DType,
) -> TensorParallelVarBuilder<'a, H, S> {
    VarBuilderArgs::new_with_args(backend.clone(), dtype, &Device::Cpu)
}

/// F32 values that count up.
fn counting(shape: &[usize]) -> TensorBuf {
    let values = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    TensorBuf::from_vec(shape.to_vec(), values).unwrap()
}

/// The elements in C order.
fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}
