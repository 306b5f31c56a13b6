//! [`Framework`] for [`Candle`].

use candle_core::{Device, Shape, Storage, Tensor};
use safetensors_core::framework::{Framework, Support, read_in_batches};
use safetensors_core::{Dtype, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf, TensorSource};

use crate::dtype;
use crate::error::{Candle, cannot_place, from_candle_error};
use crate::save::CandleSource;

/// The most bytes of a batch for a device with separate memory.
const BATCH: u64 = 256 << 20;

impl Framework for Candle {
    const NAME: &'static str = "candle";

    type Tensor = Tensor;
    type Device = Device;

    fn support(dtype: Dtype) -> Support {
        dtype::support(dtype)
    }

    /// Moves the elements into a tensor on the CPU, then copies them if `device` is another one,
    /// and waits, so that any thread can use the tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if the device lacks the
    /// dtype. F4, F6_E2M3, F6_E3M2 and F8_E8M0 can be placed only on the CPU.
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

    /// Reads tensors onto a device, in parallel, as the [crate](crate#devices) describes.
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

    /// Borrows the tensor as a source to be saved, and waits for the device's work of the calling
    /// thread. Locks the storage only while the tensor is written.
    ///
    /// # Errors
    ///
    /// [`UnsupportedFrameworkType`](safetensors_core::ErrorKind::UnsupportedFrameworkType)
    /// if the format has no dtype for the tensor's;
    /// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if the device reports an
    /// error.
    fn source(tensor: &Tensor) -> Result<impl TensorSource + '_> {
        CandleSource::new(tensor)
    }
}
