//! Loads checkpoints as candle tensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
#[cfg(doc)]
use safetensors_core::Checkpoint;
use safetensors_core::{LoadOptions, Result, framework};

use crate::Candle;

/// Loads every tensor of a checkpoint onto a device, by name. The path names a file, an index of
/// shards, or the directory that holds either.
///
/// Files are read in parallel. Dtypes that candle lacks are widened without loss; see the
/// [crate's table](crate#dtypes).
///
/// ```
/// use candle_core::Device;
/// use safetensors_core::{SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("ids", TensorView::from_slice(&[2], &[1_i64, 2])?)], &SaveOptions::new())?;
///
/// let tensors = safetensors_candle::load(&path, &Device::Cpu)?;
/// assert_eq!(tensors["ids"].to_vec1::<i64>()?, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - The errors of [`Checkpoint::open`] and of reading.
/// - [`ErrorKind::DoesNotFit`] for a U64 value that I64 cannot hold.
/// - [`ErrorKind::NeedsScales`] for a [quantised weight](crate#quantised-weights) whose dtype
///   candle lacks.
/// - [`ErrorKind::Framework`] if candle fails.
///
/// Each names the file, and the tensor if it concerns one.
///
/// [`ErrorKind::DoesNotFit`]: safetensors_core::ErrorKind::DoesNotFit
/// [`ErrorKind::NeedsScales`]: safetensors_core::ErrorKind::NeedsScales
/// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    load_with(path, device, &LoadOptions::new())
}

/// [`load()`] with options, such as the number of reading threads, the conversion of dtypes, and
/// whether dtypes may be widened.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_core::{
///     Dtype, ErrorKind, LoadOptions, SaveOptions, TensorView, Widening, save,
/// };
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let scale = TensorView::from_slice(&[], &[0.5_f32])?;
/// let mask = TensorView::from_slice(&[2], &[true, false])?;
/// save(&path, [("scale", scale), ("mask", mask)], &SaveOptions::new())?;
///
/// let converted = LoadOptions::new().floats_as(Dtype::F16);
/// assert_eq!(
///     safetensors_candle::load_with(&path, &Device::Cpu, &converted)?["scale"].dtype(),
///     DType::F16
/// );
///
/// let exact = LoadOptions::new().widening(Widening::Refuse);
/// let error = safetensors_candle::load_with(&path, &Device::Cpu, &exact).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::WouldWiden { .. }));
/// assert_eq!(error.tensor(), Some("mask"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - The errors of [`load()`].
/// - [`ErrorKind::NoConversion`] if a requested conversion does not exist.
/// - [`ErrorKind::WouldWiden`] if a tensor needs widening and the options do not allow it. If the
///   options convert a tensor, the dtype after the conversion decides.
/// - [`ErrorKind::NeedsScales`] if a [quantised weight](crate#quantised-weights) would become
///   another dtype and the options do not say how to treat its scales.
///
/// The last three are found before any data is read.
///
/// [`ErrorKind::NeedsScales`]: safetensors_core::ErrorKind::NeedsScales
/// [`ErrorKind::NoConversion`]: safetensors_core::ErrorKind::NoConversion
/// [`ErrorKind::WouldWiden`]: safetensors_core::ErrorKind::WouldWiden
pub fn load_with(
    path: impl AsRef<Path>,
    device: &Device,
    options: &LoadOptions,
) -> Result<BTreeMap<String, Tensor>> {
    framework::load_path::<Candle>(path, device, options)
}
