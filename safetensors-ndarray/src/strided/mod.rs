//! Writes arrays of any memory layout in C order. Buffers are used only where they are needed.
//!
//! [`Blocks`] divides an array. [`gather`](gather::gather) brings a block into C order. [`ahead`]
//! does so in a second thread, while the first one writes the block before.

mod ahead;
mod blocks;
mod gather;

use blocks::{Blocks, Rows};
use ndarray::{ArrayViewD, Axis};
use safetensors_core::Result;
use safetensors_core::framework::{default_threads, write_native};
use safetensors_core::save::{PieceSink, Sink};

use crate::ArrayElement;
use crate::error::shape_error;

/// Contiguous runs of at least this many bytes are written directly, without a buffer.
const LONG_RUN: usize = 64 << 10;

/// Arrays of at least this many bytes are gathered by a second thread. Starting one takes as long
/// as writing some 100 KiB.
const LARGE: usize = 8 << 20;

/// Writes the elements to `sink` in C order. The strides may be positive, negative or zero.
///
/// An array in C order is written as one borrowed piece. An array of long contiguous runs is
/// written run by run, each borrowed. Any other array is gathered block by block in a buffer, or
/// two if the array is [`LARGE`]. A buffer has from 2 to 32 MiB.
pub(crate) fn write<T: ArrayElement>(array: ArrayViewD<'_, T>, sink: &mut Sink<'_>) -> Result<()> {
    write_blocks(array, Blocks::in_order, &mut |_, bytes| sink(bytes))
}

/// [`write`] to a sink that takes pieces in any order. Where rows are cut, a buffer has from 2 to
/// 8 MiB.
pub(crate) fn write_pieces<T: ArrayElement>(
    array: ArrayViewD<'_, T>,
    sink: &mut PieceSink<'_>,
) -> Result<()> {
    write_blocks(array, Blocks::in_any_order, sink)
}

fn write_blocks<'a, T: ArrayElement>(
    array: ArrayViewD<'a, T>,
    blocks: fn(ArrayViewD<'a, T>) -> Blocks<'a, T>,
    sink: &mut PieceSink<'_>,
) -> Result<()> {
    if let Some(elements) = array.as_slice() {
        return give(elements, 0, sink);
    }
    let array = merge_axes(array);
    if is_run(&array, LONG_RUN) {
        let run = array.len_of(Axis(array.ndim() - 1));
        let runs = array.rows().into_iter().filter_map(|row| row.to_slice());
        return runs.zip((0..).step_by(run)).try_for_each(|(run, start)| give(run, start, sink));
    }
    let bytes = array.len().saturating_mul(size_of::<T>());
    let blocks = blocks(array);
    match bytes {
        LARGE.. if default_threads() > 1 => ahead::write(&blocks, sink),
        _ => write_here(&blocks, sink),
    }
}

/// Gathers and writes blocks in this thread alone.
fn write_here<T: ArrayElement>(blocks: &Blocks<'_, T>, sink: &mut PieceSink<'_>) -> Result<()> {
    let mut buffer = bytemuck::zeroed_vec(blocks.most);
    blocks.for_each(&mut |block, rows| {
        let gathered = &mut buffer[..block.len()];
        gather::gather(block, gathered).map_err(shape_error)?;
        give_rows(gathered, rows, sink)
    })
}

/// Writes the rows of a block.
fn give_rows<T: ArrayElement>(block: &[T], rows: Rows, sink: &mut PieceSink<'_>) -> Result<()> {
    let mut starts = (rows.start..).step_by(rows.stride);
    block
        .chunks_exact(rows.len)
        .zip(&mut starts)
        .try_for_each(|(row, start)| give(row, start, sink))
}

/// Writes contiguous elements in the byte order of the format. `start` is the place of the first.
fn give<T: ArrayElement>(elements: &[T], start: usize, sink: &mut PieceSink<'_>) -> Result<()> {
    let mut offset = (start * size_of::<T>()) as u64;
    write_native(T::DTYPE, bytemuck::cast_slice(elements), &mut |bytes| {
        sink(offset, bytes)?;
        offset += bytes.len() as u64;
        Ok(())
    })
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
