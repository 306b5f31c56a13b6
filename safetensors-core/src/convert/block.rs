//! What converting one block of elements takes, whatever the dtypes: the bytes as values, the
//! places for the results, and why it fails.

use bytemuck::Pod;

use crate::dtype::Dtype;

/// The elements that are converted at a time, so that what lies between two steps stays in the
/// nearest cache.
pub(super) const BLOCK: usize = 2048;

/// The bytes that are converted at a time on their way from or to a file: enough for one call,
/// little enough for the cache of a thread.
pub(crate) const STREAMED: usize = 512 << 10;

/// Packed elements come in groups that fill whole bytes, of four elements at most.
pub(crate) const GROUP: usize = 4;

/// Why a block could not be converted.
pub(super) enum Failure {
    /// The element of this index does not fit.
    DoesNotFit(usize),
    /// The pair of dtypes is not in the table.
    NoConversion,
    /// The place for the result is not aligned for its dtype.
    Misaligned,
}

/// What a block needs on its way.
pub(super) struct Scratch {
    /// The source's bytes, aligned.
    pub(super) source: [u64; BLOCK],
    /// The values.
    pub(super) floats: [f32; BLOCK],
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { source: [0; BLOCK], floats: [0.0; BLOCK] }
    }
}

/// The number of bytes of a number of elements, a multiple of [`GROUP`] for packed dtypes.
pub(crate) fn bytes_of(dtype: Dtype, elements: usize) -> usize {
    elements * dtype.bits() as usize / 8
}

/// The number of elements in a number of bytes.
pub(crate) fn elements_of(dtype: Dtype, bytes: usize) -> usize {
    bytes * 8 / dtype.bits() as usize
}

/// Bytes as values: where they lie if they are aligned, else copied to `scratch`, which has room
/// for them.
pub(super) fn aligned<'a, T: Pod>(bytes: &'a [u8], scratch: &'a mut [u64]) -> &'a [T] {
    if let Ok(values) = bytemuck::try_cast_slice(bytes) {
        return values;
    }
    let scratch = &mut bytemuck::cast_slice_mut(scratch)[..bytes.len()];
    scratch.copy_from_slice(bytes);
    bytemuck::cast_slice(scratch)
}

/// The place for values of `T`.
pub(super) fn cast_mut<T: Pod>(out: &mut [u8]) -> Result<&mut [T], Failure> {
    bytemuck::try_cast_slice_mut(out).map_err(|_| Failure::Misaligned)
}

/// A failure with the index of the first element that does not fit, if there is one.
pub(super) fn first(mut fits: impl Iterator<Item = bool>) -> Result<(), Failure> {
    fits.position(|fits| !fits).map_or(Ok(()), |index| Err(Failure::DoesNotFit(index)))
}

/// Runs a loop in code that is compiled for the widest vectors that this machine has, as far as the
/// loop is inlined.
#[cfg(feature = "std")]
#[inline(always)]
pub(super) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// Without the standard library nothing says which vectors the machine has.
#[cfg(not(feature = "std"))]
#[inline(always)]
pub(super) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    work()
}
