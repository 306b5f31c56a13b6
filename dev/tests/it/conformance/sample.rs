//! Helpers of all cases: tensors of every dtype and shape with pseudorandom bytes, and files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors_bridge::convert::widen;
use safetensors_bridge::framework::{Framework, Support, load};
use safetensors_bridge::shape::byte_len;
use safetensors_bridge::{
    Checkpoint, Dtype, LoadOptions, Result, SaveOptions, TensorBuf, TensorSource,
};
use safetensors_testing::tensors::file_bytes;
use tempfile::TempDir;

/// The tensors of a checkpoint by name, as a framework holds them.
type Loaded<F> = BTreeMap<String, <F as Framework>::Tensor>;

/// Loads a path into a framework with the default options.
pub(crate) fn load_path<F: Framework>(path: &Path, device: &F::Device) -> Result<Loaded<F>> {
    load::<F>(&Checkpoint::open(path)?, device, &LoadOptions::new())
}

/// Saves tensors to a file in `dir`, and returns its path.
pub(crate) fn save_file<'a>(
    dir: &TempDir,
    name: &str,
    tensors: impl IntoIterator<Item = (&'a str, &'a TensorBuf)>,
) -> PathBuf {
    let path = dir.path().join(name);
    safetensors_bridge::save(&path, tensors, &SaveOptions::new()).unwrap();
    path
}

/// Returns the tensor that a framework must load, by its own dtype table; `None` if it cannot hold
/// it.
pub(crate) fn expected<F: Framework>(buf: &TensorBuf) -> Option<(Dtype, Vec<usize>, Vec<u8>)> {
    match F::support(buf.dtype()) {
        Support::Exact => Some(parts(buf)),
        Support::Widened(to) => Some(parts(&widen(buf.clone(), to).unwrap())),
        Support::Unsupported => None,
    }
}

/// Returns a shape of `ndim` dimensions with elements that fill whole bytes in every dtype.
pub(crate) fn shape_of_ndim(ndim: usize) -> Vec<usize> {
    [4, 2, 3, 1, 2, 5][..ndim].to_vec()
}

/// A tensor of any dtype and shape. BOOL elements are 0 and 1. U64 elements are below 2⁶³, so that
/// they fit I64. All other elements have any bits, including NaN and infinity.
pub(crate) fn tensor(dtype: Dtype, shape: &[usize]) -> TensorBuf {
    TensorBuf::filled_by(dtype, shape.to_vec(), |bytes| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(dtype.bits());
        for (i, byte) in bytes.iter_mut().enumerate() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = match dtype {
                Dtype::BOOL => (state >> 63) as u8,
                Dtype::U64 if i % 8 == 7 => (state >> 57) as u8,
                _ => (state >> 56) as u8,
            };
        }
        Ok(())
    })
    .unwrap()
}

/// A tensor of every dtype that can have this shape.
pub(crate) fn all_dtypes(shape: &[usize]) -> impl Iterator<Item = (Dtype, TensorBuf)> {
    Dtype::ALL
        .iter()
        .filter(|&&dtype| byte_len(dtype, shape).is_ok())
        .map(|&dtype| (dtype, tensor(dtype, shape)))
}

/// Returns the dtype, shape and bytes that a framework's tensor writes.
pub(crate) fn written<F: Framework>(tensor: &F::Tensor) -> (Dtype, Vec<usize>, Vec<u8>) {
    let source = F::source(tensor).unwrap();
    (source.dtype(), source.shape().to_vec(), file_bytes(&source))
}

/// Dtype, shape and bytes of a buffer, to compare with [`written`].
pub(crate) fn parts(buf: &TensorBuf) -> (Dtype, Vec<usize>, Vec<u8>) {
    (buf.dtype(), buf.shape().to_vec(), buf.bytes().to_vec())
}
