//! Helpers of several tests.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Storage, Tensor};
use safetensors_candle::Candle;
use safetensors_core::framework::Framework;
use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorBuf, serialize};
pub(crate) use safetensors_testing::files::place;

/// A tensor with a pattern in its bytes that is valid for its dtype.
pub(crate) fn patterned(dtype: Dtype, shape: &[usize]) -> TensorBuf {
    TensorBuf::filled_by(dtype, shape.to_vec(), |bytes| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = match dtype {
                Dtype::BOOL => (i % 3 == 0).into(),
                // A low highest byte keeps the values in the range of I64.
                Dtype::U64 if i % 8 == 7 => 0x7f,
                _ => (i * 37 + 11) as u8,
            };
        }
        Ok(())
    })
    .unwrap()
}

/// Saves buffers with core alone.
pub(crate) fn save_bufs(path: &Path, bufs: &[(&str, TensorBuf)]) {
    let bufs = bufs.iter().map(|(name, buf)| (*name, buf));
    safetensors_core::save(path, bufs, &SaveOptions::new().durable(false)).unwrap();
}

/// Saves tensors with candle's adapter.
pub(crate) fn save_tensors(
    path: &Path,
    tensors: &[(&str, &Tensor)],
) -> safetensors_core::Result<()> {
    safetensors_candle::save(path, tensors.iter().copied(), &SaveOptions::new().durable(false))
}

/// Returns the dtype, shape and bytes of a tensor, so that NaN is compared by its bits.
pub(crate) fn bytes(tensor: &Tensor) -> Vec<u8> {
    serialize([("t", Candle::source(tensor).unwrap())], &SaveOptions::new()).unwrap()
}

/// Reads all tensors with core alone.
pub(crate) fn read_bufs(path: &Path) -> BTreeMap<String, TensorBuf> {
    let checkpoint = Checkpoint::open(path).unwrap();
    checkpoint.tensors().map(|tensor| (tensor.name().to_string(), tensor.read().unwrap())).collect()
}

/// Makes a tensor of a storage and a shape through candle's public conversion, which checks
/// nothing.
pub(crate) fn unchecked(storage: candle_core::CpuStorage, shape: &[usize]) -> Tensor {
    Tensor::from((Storage::Cpu(storage), shape))
}

/// Removes the backtrace that candle adds to an error if RUST_BACKTRACE is set.
pub(crate) fn without_backtrace(error: candle_core::Error) -> candle_core::Error {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => without_backtrace(*inner),
        error => error,
    }
}
