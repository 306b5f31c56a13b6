//! Writes arrays of any memory layout in C order. Buffers are used only where they are needed.
//!
//! [`gather`](gather::gather) brings a block of the array into C order. [`ahead`] does so in a
//! second thread, while the first one writes the block before.

mod ahead;
mod gather;

use ndarray::{ArrayViewD, Axis};
use safetensors_core::Result;
use safetensors_core::framework::{default_threads, write_native};
use safetensors_core::save::Sink;

use crate::ArrayElement;
use crate::error::shape_error;

/// The least bytes of a buffer, unless the array has fewer. It fits the second-level cache of
/// today's processors.
const LEAST: usize = 2 << 20;

/// The most bytes of a buffer. Only rows of more than 512 KiB need as many, see [`ROWS`].
const MOST: usize = 32 << 20;

/// A buffer holds at least this many rows of the array, unless they take more than [`MOST`] bytes.
///
/// In Fortran order the elements of one column are neighbours in memory, and a block takes as many
/// of them as it has rows. With fewer rows, cache lines are loaded again for the next block.
const ROWS: usize = gather::TILE;

/// Contiguous runs of at least this many bytes are written directly, without a buffer.
const LONG_RUN: usize = 64 << 10;

/// Arrays of at least this many bytes are gathered by a second thread. Starting one takes as long
/// as writing some 100 KiB.
const LARGE: usize = 8 << 20;

/// Writes the elements to `sink` in C order. The strides may be positive, negative or zero.
///
/// An array in C order is written as one borrowed piece. An array of long contiguous runs is
/// written run by run, each borrowed. Any other array is gathered block by block in a buffer, or
/// two if the array is [`LARGE`]. A buffer has from [`LEAST`] to [`MOST`] bytes.
pub(crate) fn write<T: ArrayElement>(array: ArrayViewD<'_, T>, sink: &mut Sink<'_>) -> Result<()> {
    if let Some(elements) = array.as_slice() {
        return give(elements, sink);
    }
    let array = merge_axes(array);
    if is_run(&array, LONG_RUN) {
        return array
            .rows()
            .into_iter()
            .filter_map(|row| row.to_slice())
            .try_for_each(|run| give(run, sink));
    }
    let len = buffer_len(&array);
    match array.len() * size_of::<T>() {
        LARGE.. if default_threads() > 1 => ahead::write(array, len, sink),
        _ => write_blocks(array, len, sink),
    }
}

/// The number of elements of a buffer for the array.
fn buffer_len<T>(array: &ArrayViewD<'_, T>) -> usize {
    let elements = |bytes: usize| bytes / size_of::<T>();
    // No division is by zero: arrays of no or one element are in C order and never come here.
    let row_len = array.len() / array.len_of(Axis(0));
    (ROWS * row_len).clamp(elements(LEAST), elements(MOST)).min(array.len())
}

/// Cuts the array along its first axis into blocks of at most `most` elements, and calls `work`
/// with one after the other. If a single index of that axis has more, the function calls itself
/// with the subarray at each index.
fn for_each_block<T, E>(
    array: ArrayViewD<'_, T>,
    most: usize,
    work: &mut dyn FnMut(ArrayViewD<'_, T>) -> Result<(), E>,
) -> Result<(), E> {
    let row_len = array.len() / array.len_of(Axis(0));
    match most / row_len {
        0 => array.outer_iter().try_for_each(|row| for_each_block(row, most, work)),
        rows => array.axis_chunks_iter(Axis(0), rows).try_for_each(work),
    }
}

/// Gathers and writes an array in blocks of at most `len` elements, in this thread alone.
fn write_blocks<T: ArrayElement>(
    array: ArrayViewD<'_, T>,
    len: usize,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let mut buffer = bytemuck::zeroed_vec(len);
    for_each_block(array, len, &mut |block| {
        let gathered = &mut buffer[..block.len()];
        gather::gather(block, gathered).map_err(shape_error)?;
        give(gathered, sink)
    })
}

/// Writes contiguous elements in the byte order of the format.
fn give<T: ArrayElement>(elements: &[T], sink: &mut Sink<'_>) -> Result<()> {
    write_native(T::DTYPE, bytemuck::cast_slice(elements), sink)
}

/// Returns the same elements in the same order with as few axes as possible. Neighbouring axes that
/// one stride can step through are merged. Axes of length 1 are dropped. At most 63 axes remain,
/// each of length 2 or more.
fn merge_axes<T>(mut array: ArrayViewD<'_, T>) -> ArrayViewD<'_, T> {
    for axis in (1..array.ndim()).rev() {
        // The merged axis is now at `axis`, and one of length 1 is at `axis - 1`. The swap lets the
        // next round merge it again, so a whole contiguous tail becomes one axis.
        if array.merge_axes(Axis(axis - 1), Axis(axis)) {
            array.swap_axes(axis - 1, axis);
        }
    }
    while let Some(axis) = array.shape().iter().position(|&len| len == 1) {
        array = array.index_axis_move(Axis(axis), 0);
    }
    array
}

/// Whether the last axis is contiguous over at least this many bytes.
fn is_run<T>(array: &ArrayViewD<'_, T>, bytes: usize) -> bool {
    matches!((array.shape(), array.strides()), (&[.., len], &[.., 1]) if len.saturating_mul(size_of::<T>()) >= bytes)
}
