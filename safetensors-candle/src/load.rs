//! Loading: from a file's elements to candle tensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Shape, Storage, Tensor};
use safetensors_core::{Checkpoint, Framework, LoadOptions, Result, Support, TensorBuf, TensorSource, framework};

use crate::dtype::{self, Candle};
use crate::error::from_candle;
use crate::save::CandleSource;

impl Framework for Candle {
    const NAME: &'static str = dtype::NAME;

    type Tensor = Tensor;
    type Device = Device;

    fn support(dtype: safetensors_core::Dtype) -> Support {
        dtype::support(dtype)
    }

    /// Dtypes that candle only stores (F4, F6_E2M3, F6_E3M2, F8_E8M0) can be placed on the CPU only; on another device they are an
    /// [`ErrorKind::Framework`] error, as is any dtype that the device lacks.
    ///
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    fn from_exact(buf: TensorBuf, device: &Device) -> Result<Tensor> {
        let dtype = buf.dtype();
        let shape = Shape::from(buf.shape());
        // This constructor does not compare the length of the storage with the shape. A `TensorBuf` has exactly as many
        // elements as its shape asks for, so there is nothing to compare.
        let tensor = Tensor::from((Storage::Cpu(dtype::into_storage(buf)?), shape));
        tensor.to_device(device).map_err(|error| {
            let place = match device {
                Device::Cpu => "the CPU",
                Device::Cuda(_) => "a CUDA device",
                Device::Metal(_) => "a Metal device",
            };
            from_candle(error.context(format!("cannot place {dtype} elements on {place}")))
        })
    }

    fn source(tensor: &Tensor) -> Result<impl TensorSource + '_> {
        CandleSource::new(tensor)
    }
}

/// Loads every tensor of a checkpoint onto a device: of a file, an index of shards, or the directory that holds either.
///
/// Files are read in parallel, and dtypes that candle lacks are widened losslessly (see the [crate's table](crate#dtypes)).
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
/// Those of [`Checkpoint::open`]; of reading; [`ErrorKind::DoesNotFit`] for a U64 value that I64 does not hold; and
/// [`ErrorKind::Framework`] if candle fails. Each names the file, and the tensor if it is about one.
///
/// [`ErrorKind::DoesNotFit`]: safetensors_core::ErrorKind::DoesNotFit
/// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    load_with(path, device, &LoadOptions::new())
}

/// [`load()`], with options for threads and widening.
///
/// ```
/// use candle_core::Device;
/// use safetensors_core::{ErrorKind, LoadOptions, SaveOptions, TensorView, Widening, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("mask", TensorView::from_slice(&[2], &[true, false])?)], &SaveOptions::new())?;
///
/// let exact = LoadOptions::new().widening(Widening::Exact);
/// let error = safetensors_candle::load_with(&path, &Device::Cpu, &exact).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::WouldWiden { .. }));
/// assert_eq!(error.tensor(), Some("mask"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`load()`], and [`ErrorKind::WouldWiden`] before anything is read if widening is not allowed and needed.
///
/// [`ErrorKind::WouldWiden`]: safetensors_core::ErrorKind::WouldWiden
pub fn load_with(path: impl AsRef<Path>, device: &Device, options: &LoadOptions) -> Result<BTreeMap<String, Tensor>> {
    framework::load::<Candle>(&Checkpoint::open(path)?, device, options)
}
