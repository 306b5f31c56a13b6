//! How tensors get from files onto a device: [`read`].

use candle_core::{Device, Tensor};
use safetensors_core::framework::read_in_batches;
use safetensors_core::{LazyTensor, LoadOptions, ReadAt, Result};

use crate::Candle;

/// Tensors for a device with separate memory are read in batches of at most this many bytes.
const BATCH: u64 = 256 << 20;

/// To pin memory takes longer than to copy fewer bytes than these without.
#[cfg(feature = "cuda")]
const PINNED: u64 = 4 << 20;

/// Reads tensors onto a device, in the order given. See the [crate's section](crate#devices).
pub(crate) fn read<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    device: &Device,
    options: &LoadOptions,
) -> Result<Vec<Tensor>> {
    match device {
        Device::Cpu => read_in_batches::<Candle, S>(tensors, device, options, u64::MAX),
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) if bytes_of(tensors) >= PINNED => {
            crate::cuda::read(tensors, cuda, options)
        }
        _ => read_in_batches::<Candle, S>(tensors, device, options, BATCH),
    }
}

/// Returns the bytes of tensors in their files.
#[cfg(feature = "cuda")]
fn bytes_of<S>(tensors: &[LazyTensor<'_, S>]) -> u64 {
    tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.byte_len()))
}
