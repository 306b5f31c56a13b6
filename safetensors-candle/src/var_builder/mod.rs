//! Lets candle's models read their weights from a checkpoint.

mod backend;
mod budget;
mod names;
mod order;
mod read_ahead;
mod sequence;
mod shared;

use std::path::Path;

pub use backend::CheckpointBackend;
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
pub(crate) use names::Names;
use safetensors_core::{Checkpoint, ReadAt, Result};

/// Makes a [`VarBuilder`] over a checkpoint: a file, an index of shards, or the directory of
/// either. It replaces candle's [constructors](crate::migration#building-a-model).
///
/// Only headers are read now. A tensor is read when the model asks for it, or earlier if the model
/// asks layer by layer. It has the requested shape and dtype, and is on the requested device. A
/// tensor with several [names](Checkpoint::aliases) is found under each.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_core::{SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let weight = TensorView::from_slice(&[2, 3], &[0.0_f32; 6])?;
/// save(&path, [("encoder.fc.weight", weight)], &SaveOptions::new())?;
///
/// let builder = safetensors_candle::var_builder(&path, DType::BF16, &Device::Cpu)?;
/// let encoder = builder.pp("encoder");
/// let linear = candle_nn::linear_no_bias(3, 2, encoder.pp("fc"))?;
/// assert_eq!(linear.weight().dtype(), DType::BF16);
/// assert!(encoder.get((3, 2), "fc.weight").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Like [`Checkpoint::open`]. Two files with a tensor of the same name are an error.
/// [`CheckpointBackend`] lists the errors of the builder.
pub fn var_builder(
    path: impl AsRef<Path>,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    Ok(var_builder_from(Checkpoint::open(path)?, dtype, device))
}

/// Makes a builder like [`var_builder()`], over an open checkpoint: in memory, of several files
/// without an index ([`Checkpoint::open_files`]), with limits, mapped, or from any other source.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
///
/// let scale = TensorView::from_slice(&[], &[0.5_f32])?;
/// let bytes = serialize([("scale", scale)], &SaveOptions::new())?;
/// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
/// let builder = safetensors_candle::var_builder_from(checkpoint, DType::F32, &Device::Cpu);
/// assert_eq!(builder.get((), "scale")?.to_scalar::<f32>()?, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn var_builder_from<'a>(
    checkpoint: Checkpoint<impl ReadAt + 'a>,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'a> {
    CheckpointBackend::new(checkpoint).var_builder(dtype, device)
}
