//! Sizes of blocks, and helpers for converting one block, independent of the dtypes.

use bytemuck::Pod;

use crate::dtype::Dtype;

/// The number of elements that are converted at a time. It is so small that intermediate values
/// stay in the nearest cache.
pub(super) const BLOCK: usize = 2048;

/// The number of bytes that are converted at a time while a file is read or written. It is large
/// enough for the cost of a system call not to matter, and small enough for the cache of a core.
pub(crate) const STREAMED: usize = 512 << 10;

/// The number of elements that fill whole bytes in every dtype. Four packed elements of 6 bits are
/// three bytes.
pub(crate) const GROUP: usize = 4;

/// Why a block could not be converted.
pub(super) enum Failure {
    /// The element at this index of the block does not fit the target dtype.
    DoesNotFit(usize),
    /// The pair of dtypes cannot be converted.
    NoConversion,
    /// The output buffer is not aligned for its dtype.
    Misaligned,
}

/// Buffers for the conversion of one block.
pub(super) struct Scratch {
    /// An aligned copy of the source's bytes, if they are not aligned themselves.
    pub(super) source: [u64; BLOCK],
    /// The decoded values, before they are encoded in the target dtype.
    pub(super) floats: [f32; BLOCK],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { source: [0; BLOCK], floats: [0.0; BLOCK] }
    }
}

/// The number of bytes that `elements` elements take. For packed dtypes `elements` must be a
/// multiple of [`GROUP`].
pub(crate) fn bytes_of(dtype: Dtype, elements: usize) -> usize {
    elements * dtype.bits() as usize / 8
}

/// The number of elements in `bytes` bytes.
pub(crate) fn elements_of(dtype: Dtype, bytes: usize) -> usize {
    bytes * 8 / dtype.bits() as usize
}

/// Bytes as values of `T`. They are borrowed if they are aligned for `T`, else copied to `scratch`,
/// which must have room for them.
pub(super) fn aligned<'a, T: Pod>(bytes: &'a [u8], scratch: &'a mut [u64]) -> &'a [T] {
    if let Ok(values) = bytemuck::try_cast_slice(bytes) {
        return values;
    }
    let scratch = &mut bytemuck::cast_slice_mut(scratch)[..bytes.len()];
    scratch.copy_from_slice(bytes);
    bytemuck::cast_slice(scratch)
}

/// The output bytes as values of `T`.
pub(super) fn cast_mut<T: Pod>(out: &mut [u8]) -> Result<&mut [T], Failure> {
    bytemuck::try_cast_slice_mut(out).map_err(|_| Failure::Misaligned)
}

/// Fails with the index of the first element that does not fit, if there is one.
pub(super) fn check_all(mut fits: impl Iterator<Item = bool>) -> Result<(), Failure> {
    fits.position(|fits| !fits).map_or(Ok(()), |index| Err(Failure::DoesNotFit(index)))
}

/// Runs `work` compiled for the widest vector instructions of this machine. This works only for
/// code that is inlined into `work`.
#[cfg(feature = "std")]
#[inline(always)]
pub(super) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// Without the standard library the machine's instructions cannot be detected.
#[cfg(not(feature = "std"))]
#[inline(always)]
pub(super) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    work()
}
