//! Loading into [`TensorData`].

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Bytes, DType, Shape, TensorData};
use safetensors_core::{Checkpoint, Error, LoadOptions, Result, TensorBuf, framework};

use crate::{Burn, dtype};

/// Loads every tensor of a file, an index or a directory, by name. Files are read in parallel; the
/// elements are read to where burn keeps them, and dtypes that burn lacks are widened losslessly.
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
///
/// # Errors
///
/// Those of [`load_with`].
pub fn load(path: impl AsRef<Path>) -> Result<BTreeMap<String, TensorData>> {
    load_with(path, &LoadOptions::new())
}

/// [`load`] with options: how many threads read, what is converted while it is read, and whether a
/// dtype may be widened.
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
/// Those of [`Checkpoint::open`]; [`ErrorKind::NoConversion`]; [`ErrorKind::WouldWiden`] if
/// widening is needed and not allowed; [`ErrorKind::Io`]; and [`ErrorKind::InvalidBool`]. Each
/// names the file, and the tensor if it is about one.
///
/// [`ErrorKind::NoConversion`]: safetensors_core::ErrorKind::NoConversion
/// [`ErrorKind::WouldWiden`]: safetensors_core::ErrorKind::WouldWiden
/// [`ErrorKind::Io`]: safetensors_core::ErrorKind::Io
/// [`ErrorKind::InvalidBool`]: safetensors_core::ErrorKind::InvalidBool
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<BTreeMap<String, TensorData>> {
    framework::load::<Burn>(&Checkpoint::open(path)?, &(), options)
}

/// A buffer whose dtype burn has, as `TensorData`. The elements are moved.
pub(crate) fn from_exact(buf: TensorBuf) -> Result<TensorData> {
    let dtype = buf.dtype();
    let Some(to) = dtype::to_burn(dtype) else {
        return Err(Error::unsupported_dtype::<Burn>(dtype));
    };
    let shape = buf.shape().to_vec();
    from_bytes(dtype::into_bytes(buf)?, shape, to)
}

/// `TensorData` of bytes that burn holds, whose length was checked before.
pub(crate) fn from_bytes(bytes: Bytes, shape: Vec<usize>, dtype: DType) -> Result<TensorData> {
    TensorData::try_from_bytes(bytes, Shape::from(shape), dtype).map_err(Error::framework::<Burn>)
}
