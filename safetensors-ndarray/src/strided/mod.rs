//! Writes arrays of any memory layout in C order.
// `Blocks` divides an array, and `gather` brings a block into C order. A second thread helps with
// large arrays: in order, it gathers the next block while the first one writes (`ahead`); in any
// order, each thread gathers and writes separate blocks (`together`).

mod ahead;
mod blocks;
mod buffer;
mod gather;
mod together;

use blocks::{Blocks, Rows};
use buffer::Buffer;
use ndarray::{ArrayViewD, Axis};
use safetensors_core::framework::{default_threads, write_native};
use safetensors_core::save::{PieceSink, Sink};
use safetensors_core::{Error, Result};

use crate::error::shape_error;
use safetensors_core::element::Element;

/// Contiguous runs of at least this many bytes are written without a buffer.
const LONG_RUN: usize = 64 << 10;

/// A second thread helps from this many bytes on.
// Starting one takes as long as writing some 100 KiB.
const LARGE: usize = 8 << 20;

/// A [`PieceSink`] for one thread, which need not be [`Send`].
type LocalSink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

enum Stop {
    /// The other thread failed.
    NotNeeded,
    /// A block could not be gathered or written.
    Failed(Error),
}

/// Writes the elements in C order. The strides may be positive, negative or zero.
// Contiguous arrays and long runs are written borrowed. Other arrays are gathered block by block in
// a buffer of 2 to 32 MiB, or two if the array is `LARGE`.
pub(crate) fn write<T: Element>(array: ArrayViewD<'_, T>, sink: &mut Sink<'_>) -> Result<()> {
    let mut sink = |_, bytes: &[u8]| sink(bytes);
    match write_runs(array, &mut sink)? {
        None => Ok(()),
        Some(array) if is_large(&array) => ahead::write(&Blocks::in_order(array), &mut sink),
        Some(array) => write_here(&Blocks::in_order(array), &mut sink),
    }
}

/// Writes pieces in any order, with buffers of 2 to 8 MiB.
pub(crate) fn write_pieces<T: Element>(
    array: ArrayViewD<'_, T>,
    sink: &mut PieceSink<'_>,
) -> Result<()> {
    match write_runs(array, sink)? {
        None => Ok(()),
        Some(array) if is_large(&array) => together::write(&Blocks::in_any_order(array), sink),
        Some(array) => write_here(&Blocks::in_any_order(array), sink),
    }
}

/// Writes an array that needs no buffer. Returns any other array, with as few axes as possible.
fn write_runs<'a, T: Element>(
    array: ArrayViewD<'a, T>,
    sink: &mut LocalSink<'_>,
) -> Result<Option<ArrayViewD<'a, T>>> {
    if let Some(elements) = array.as_slice() {
        give(elements, 0, sink)?;
        return Ok(None);
    }
    let array = merge_axes(array);
    if !is_run(&array, LONG_RUN) {
        return Ok(Some(array));
    }
    let run = array.len_of(Axis(array.ndim() - 1));
    let runs = array.rows().into_iter().filter_map(|row| row.to_slice());
    runs.zip((0..).step_by(run)).try_for_each(|(run, start)| give(run, start, sink))?;
    Ok(None)
}

fn is_large<T>(array: &ArrayViewD<'_, T>) -> bool {
    array.len().saturating_mul(size_of::<T>()) >= LARGE && default_threads() > 1
}

/// Gathers and writes blocks in this thread alone.
fn write_here<T: Element>(blocks: &Blocks<'_, T>, sink: &mut LocalSink<'_>) -> Result<()> {
    let mut buffer = Buffer::new(blocks.most);
    blocks.for_each(&mut |block, rows| {
        let gathered = buffer.first(block.len());
        gather::gather(block, gathered).map_err(shape_error)?;
        give_rows(gathered, rows, sink)
    })
}

fn give_rows<T: Element>(block: &[T], rows: Rows, sink: &mut LocalSink<'_>) -> Result<()> {
    let mut starts = (rows.start..).step_by(rows.stride);
    block
        .chunks_exact(rows.len)
        .zip(&mut starts)
        .try_for_each(|(row, start)| give(row, start, sink))
}

/// Writes contiguous elements from the place `start` on, in the byte order of the format.
fn give<T: Element>(elements: &[T], start: usize, sink: &mut LocalSink<'_>) -> Result<()> {
    let mut offset = (start * size_of::<T>()) as u64;
    write_native(T::DTYPE, bytemuck::cast_slice(elements), &mut |bytes| {
        sink(offset, bytes)?;
        offset += bytes.len() as u64;
        Ok(())
    })
}

/// Merges neighbouring axes that one stride can step through, and drops axes of length 1. At most
/// 63 axes remain.
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

/// Returns `true` if the last axis is contiguous over at least this many bytes.
fn is_run<T>(array: &ArrayViewD<'_, T>, bytes: usize) -> bool {
    matches!((array.shape(), array.strides()), (&[.., len], &[.., 1]) if len.saturating_mul(size_of::<T>()) >= bytes)
}
