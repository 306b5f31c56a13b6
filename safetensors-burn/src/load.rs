//! Loads checkpoints as [`TensorData`].

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, DType, Shape, TensorData};
#[cfg(doc)]
use safetensors_core::Checkpoint;
use safetensors_core::{Error, LoadOptions, Result, framework};

use crate::Burn;

/// Loads every tensor of a checkpoint, by name. The path is a file, an index of shards, or the
/// directory of either.
///
/// Files are read in parallel, into the memory that burn then owns. Dtypes that burn lacks are
/// widened without loss.
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

/// Loads like [`load`], with options.
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
/// An error of [`Checkpoint::open`]; [`ErrorKind::NoConversion`] and [`ErrorKind::WouldWiden`] if
/// the options ask for a conversion that does not exist, or refuse one; [`ErrorKind::Quantization`]
/// for a quantised weight, unless the options [read it](LoadOptions::quantized);
/// [`ErrorKind::InvalidBool`] for a BOOL byte that is neither 0 nor 1.
///
/// [`ErrorKind::NoConversion`]: safetensors_core::ErrorKind::NoConversion
/// [`ErrorKind::WouldWiden`]: safetensors_core::ErrorKind::WouldWiden
/// [`ErrorKind::Quantization`]: safetensors_core::ErrorKind::Quantization
/// [`ErrorKind::InvalidBool`]: safetensors_core::ErrorKind::InvalidBool
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<BTreeMap<String, TensorData>> {
    framework::load_path::<Burn>(path, &(), options)
}

/// Makes `TensorData` of bytes. Their length must fit the shape and the dtype.
pub(crate) fn from_bytes(bytes: Bytes, shape: Vec<usize>, dtype: DType) -> Result<TensorData> {
    TensorData::try_from_bytes(bytes, Shape::from(shape), dtype).map_err(Error::framework::<Burn>)
}
