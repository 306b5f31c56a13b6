//! [`Candle`]: implements core's [`Framework`] for candle, so that core can load and save tensors.

use candle_core::{Device, Shape, Storage, Tensor};
use safetensors_core::framework::{Framework, Support, read_in_batches};
use safetensors_core::{Dtype, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf, TensorSource};

use crate::dtype;
use crate::error::{Candle, cannot_place, from_candle_error};
use crate::save::CandleSource;

/// Tensors for a device with separate memory are read in batches of at most this many bytes.
const BATCH: u64 = 256 << 20;

impl Framework for Candle {
    const NAME: &'static str = "candle";

    type Tensor = Tensor;
    type Device = Device;

    fn support(dtype: Dtype) -> Support {
        dtype::support(dtype)
    }

    /// Moves the elements into a tensor on the CPU, then copies them if `device` is another one,
    /// and waits for the copy. So any thread can use the tensor, although each thread has a
    /// separate CUDA stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Framework`] if the device lacks the dtype. Dtypes that candle only stores (F4,
    /// F6_E2M3, F6_E3M2, F8_E8M0) can be placed only on the CPU.
    ///
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    fn from_exact(buf: TensorBuf, device: &Device) -> Result<Tensor> {
        let dtype = buf.dtype();
        let shape = Shape::from(buf.shape());
        // This constructor does not compare the length of the storage with the shape. No check is
        // needed, because a `TensorBuf` always has the number of elements of its shape.
        let tensor = Tensor::from((Storage::Cpu(dtype::into_storage(buf)?), shape));
        let tensor =
            tensor.to_device(device).map_err(|error| cannot_place(dtype, device, error))?;
        device.synchronize().map_err(from_candle_error)?;
        Ok(tensor)
    }

    /// Reads tensors onto a device, in parallel. How they get there depends on the device; see the
    /// [crate's section](crate#devices).
    fn read_tensors<S: ReadAt>(
        tensors: &[LazyTensor<'_, S>],
        device: &Device,
        options: &LoadOptions,
    ) -> Result<Vec<Tensor>> {
        match device {
            Device::Cpu => read_in_batches::<Self, S>(tensors, device, options, u64::MAX),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) if crate::cuda::is_faster(tensors) => {
                crate::cuda::read(tensors, cuda, options)
            }
            _ => read_in_batches::<Self, S>(tensors, device, options, BATCH),
        }
    }

    /// Borrows the tensor as a source to be saved. Waits until the device has finished the work of
    /// the calling thread. The storage is locked only while the tensor is written, not as long as
    /// the source lives.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedFrameworkType`] if the format has no dtype for the tensor's;
    /// [`ErrorKind::Framework`] if the device reports an error.
    ///
    /// [`ErrorKind::UnsupportedFrameworkType`]:
    /// safetensors_core::ErrorKind::UnsupportedFrameworkType
    /// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
    fn source(tensor: &Tensor) -> Result<impl TensorSource + '_> {
        CandleSource::new(tensor)
    }
}
