//! Loads checkpoints as candle tensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use safetensors_core::framework::{self, Framework};
use safetensors_core::load::LazySlice;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf};

use crate::{Candle, IntoCandle};

/// Loads every tensor of a checkpoint onto a device, by name, in parallel. The path is a file, an
/// index of shards, or the directory of either.
///
/// Dtypes that candle lacks are [widened](crate#dtypes) without loss.
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
/// - Like [`Checkpoint::open`].
/// - [`ErrorKind::Quantization`](safetensors_core::ErrorKind::Quantization) for a [quantised
///   weight](crate#quantised-weights), before any data is read.
/// - [`ErrorKind::DoesNotFit`](safetensors_core::ErrorKind::DoesNotFit) for a U64 value that I64
///   cannot hold.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    load_with(path, device, &LoadOptions::new())
}

/// Loads like [`load()`], with options.
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
/// Like [`load()`], and before any data is read:
///
/// - [`ErrorKind::NoConversion`](safetensors_core::ErrorKind::NoConversion) if a requested
///   conversion does not exist;
/// - [`ErrorKind::WouldWiden`](safetensors_core::ErrorKind::WouldWiden) if a tensor needs widening
///   and the options refuse it.
pub fn load_with(
    path: impl AsRef<Path>,
    device: &Device,
    options: &LoadOptions,
) -> Result<BTreeMap<String, Tensor>> {
    framework::load_path::<Candle>(path, device, options)
}

/// Loads like [`load_with`], from an open checkpoint: in memory, in a bucket, of several files
/// without an index ([`Checkpoint::open_files`]), with limits, mapped, or with an adapter merged.
///
/// ```
/// use candle_core::Device;
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, serialize};
///
/// let scale = TensorView::from_slice(&[], &[0.5_f32])?;
/// let bytes = serialize([("scale", scale)], &SaveOptions::new())?;
/// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
/// let tensors = safetensors_candle::load_from(&checkpoint, &Device::Cpu, &LoadOptions::new())?;
/// assert_eq!(tensors["scale"].to_scalar::<f32>()?, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_from(
    checkpoint: &Checkpoint<impl ReadAt>,
    device: &Device,
    options: &LoadOptions,
) -> Result<BTreeMap<String, Tensor>> {
    framework::load::<Candle>(checkpoint, device, options)
}

/// Reads a tensor of an open file as a candle tensor. Implemented by [`LazyTensor`] and by
/// [`LazySlice`], which reads only its own bytes.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use safetensors_candle::{Checkpoint, IntoCandle, ReadTensorExt, SaveOptions, save};
///
/// # fn main() -> candle_core::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// let table = Tensor::arange(0_i64, 12, &Device::Cpu)?.reshape((6, 2))?;
/// save(&path, [("wte", &table)], &SaveOptions::new()).into_candle()?;
///
/// let checkpoint = Checkpoint::open(&path).into_candle()?;
/// let wte = checkpoint.tensor("wte").into_candle()?;
/// assert_eq!(wte.read_tensor(&Device::Cpu)?.to_vec2::<i64>()?, table.to_vec2::<i64>()?);
/// // The vectors of some tokens, from a table.
/// let vectors = wte.rows(&[5, 0, 5]).into_candle()?.read_tensor(&Device::Cpu)?;
/// assert_eq!(vectors.to_vec2::<i64>()?, [[10, 11], [0, 1], [10, 11]]);
/// # Ok(())
/// # }
/// ```
pub trait ReadTensorExt {
    /// Reads the tensor onto a device. A dtype that candle lacks is [widened](crate#dtypes) without
    /// loss.
    fn read_tensor(&self, device: &Device) -> candle_core::Result<Tensor> {
        self.read_tensor_with(device, &LoadOptions::new())
    }

    /// Reads like [`read_tensor`](ReadTensorExt::read_tensor), with options.
    ///
    /// # Errors
    ///
    /// Like [`load_with`], converted by [`IntoCandle`]. Codes of a quantised weight are an error
    /// even if the options ask for numbers; use [`Checkpoint::dequantized`] for numbers.
    fn read_tensor_with(
        &self,
        device: &Device,
        options: &LoadOptions,
    ) -> candle_core::Result<Tensor>;
}

impl<S: ReadAt> ReadTensorExt for LazyTensor<'_, S> {
    fn read_tensor_with(
        &self,
        device: &Device,
        options: &LoadOptions,
    ) -> candle_core::Result<Tensor> {
        place(self, device, options, |options| self.read_with(options))
    }
}

impl<S: ReadAt> ReadTensorExt for LazySlice<'_, S> {
    fn read_tensor_with(
        &self,
        device: &Device,
        options: &LoadOptions,
    ) -> candle_core::Result<Tensor> {
        place(self.tensor(), device, options, |options| self.read_with(options))
    }
}

fn place<S>(
    tensor: &LazyTensor<'_, S>,
    device: &Device,
    options: &LoadOptions,
    read: impl FnOnce(&LoadOptions) -> Result<TensorBuf>,
) -> candle_core::Result<Tensor> {
    let buf = read(&options.clone().for_framework::<Candle>());
    buf.and_then(|buf| Candle::from_exact(buf, device).map_err(|error| tensor.locate(error)))
        .into_candle()
}
