//! Loads checkpoints as [`TensorData`].

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, DType, Shape, TensorData};
#[cfg(doc)]
use safetensors_core::Checkpoint;
use safetensors_core::{Error, LoadOptions, Result, framework};

use crate::Burn;

/// Loads every tensor of a checkpoint, by name. The path names a file, an index of shards, or the
/// directory that holds either.
///
/// Files are read in parallel. The elements are read into the memory that burn then owns. Dtypes
/// that burn lacks are widened without loss.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::SaveOptions;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let bias = TensorData::from([1.0_f32, 2.0]);
/// safetensors_burn::save(&path, [("bias", &bias)], &SaveOptions::new())?;
///
/// let tensors = safetensors_burn::load(&path)?;
/// assert_eq!(tensors["bias"], bias);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load(path: impl AsRef<Path>) -> Result<BTreeMap<String, TensorData>> {
    load_with(path, &LoadOptions::new())
}

/// Loads like [`load`], with options, such as the number of reading threads, the conversion of
/// dtypes, and whether dtypes may be widened.
///
/// ```
/// use burn::tensor::{DType, TensorData, bf16};
/// use safetensors_core::{Dtype, LoadOptions, SaveOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let bias = TensorData::from([bf16::from_f32(0.5)]);
/// safetensors_burn::save(&path, [("bias", &bias)], &SaveOptions::new())?;
///
/// let tensors =
///     safetensors_burn::load_with(&path, &LoadOptions::new().floats_as(Dtype::F32))?;
/// assert_eq!(tensors["bias"], TensorData::from([0.5_f32]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - An error of [`Checkpoint::open`].
/// - [`ErrorKind::NoConversion`] if a requested conversion does not exist.
/// - [`ErrorKind::WouldWiden`] if a tensor needs widening and the options do not allow it.
/// - [`ErrorKind::Quantization`] for a quantised weight, unless the options [read
///   it](LoadOptions::quantized).
/// - [`ErrorKind::Io`] if reading fails.
/// - [`ErrorKind::InvalidBool`] for a BOOL byte that is neither 0 nor 1.
///
/// Each names the file, and the tensor if it concerns one.
///
/// [`ErrorKind::NoConversion`]: safetensors_core::ErrorKind::NoConversion
/// [`ErrorKind::WouldWiden`]: safetensors_core::ErrorKind::WouldWiden
/// [`ErrorKind::Quantization`]: safetensors_core::ErrorKind::Quantization
/// [`ErrorKind::Io`]: safetensors_core::ErrorKind::Io
/// [`ErrorKind::InvalidBool`]: safetensors_core::ErrorKind::InvalidBool
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<BTreeMap<String, TensorData>> {
    framework::load_path::<Burn>(path, &(), options)
}

/// Makes `TensorData` of bytes that burn owns. Their length must fit the shape and the dtype.
pub(crate) fn from_bytes(bytes: Bytes, shape: Vec<usize>, dtype: DType) -> Result<TensorData> {
    TensorData::try_from_bytes(bytes, Shape::from(shape), dtype).map_err(Error::framework::<Burn>)
}
