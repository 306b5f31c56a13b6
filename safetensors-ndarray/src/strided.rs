//! Writes arrays of any memory layout in C order. A small buffer is used only where it is needed.

#[cfg(not(feature = "rayon"))]
use gather as gather_block;
#[cfg(feature = "rayon")]
use ndarray::ArrayViewMut2;
use ndarray::{ArrayViewD, ArrayViewMutD, Axis, Ix2, ShapeError};
use safetensors_core::Result;
use safetensors_core::framework::write_native;
use safetensors_core::save::Sink;

use crate::ArrayElement;
use crate::error::shape_error;

/// The most bytes that are gathered before they are written. They fit the second-level cache of
/// today's processors. Several threads together gather more.
const BUFFER: usize = if cfg!(feature = "rayon") { 16 << 20 } else { 1 << 20 };

/// As many parts of a buffer are gathered at the same time. Each has at least as many rows as a
/// tile is high, if the buffer has.
#[cfg(feature = "rayon")]
const PARTS: usize = 16;

/// Contiguous runs of at least this many bytes are written directly, without the buffer.
const LONG_RUN: usize = 64 << 10;

/// Contiguous runs of at least this many bytes are copied one run at a time.
const SHORT_RUN: usize = 32;

/// Planes of at least this many elements are transposed one plane at a time.
const SMALL_PLANE: usize = 64;

/// The side, in elements, of the square tiles in which a plane is transposed. A tile touches this
/// many cache lines of the source and of the destination, so both stay in the first-level cache
/// while the tile is copied.
const TILE: usize = 32;

/// Writes the elements to `sink` in C order. The strides may be positive, negative or zero.
///
/// An array in C order is written as one borrowed piece. An array of long contiguous runs is
/// written run by run, each borrowed. Any other array is gathered block by block in a buffer of at
/// most [`BUFFER`] bytes.
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
    let mut buffer = bytemuck::zeroed_vec(array.len().min(BUFFER / size_of::<T>()));
    write_blocks(array, &mut buffer, sink)
}

/// Cuts the array along its first axis into blocks that fit the buffer, and writes them to `sink`
/// one by one. If a single index of that axis does not fit, the function calls itself on the
/// subarray at each index.
fn write_blocks<T: ArrayElement>(
    array: ArrayViewD<'_, T>,
    buffer: &mut [T],
    sink: &mut Sink<'_>,
) -> Result<()> {
    // No division is by zero: arrays of no or one element are in C order and never come here.
    let row_len = array.len() / array.len_of(Axis(0));
    match buffer.len() / row_len {
        0 => array.outer_iter().try_for_each(|row| write_blocks(row, buffer, sink)),
        rows => array.axis_chunks_iter(Axis(0), rows).try_for_each(|block| {
            let gathered = &mut buffer[..block.len()];
            gather_block(block, gathered).map_err(shape_error)?;
            give(gathered, sink)
        }),
    }
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

/// Copies a block into `gathered` in C order, by several threads if it is large.
#[cfg(feature = "rayon")]
fn gather_block<T: ArrayElement>(
    block: ArrayViewD<'_, T>,
    gathered: &mut [T],
) -> Result<(), ShapeError> {
    use ndarray::parallel::prelude::{
        IndexedParallelIterator, IntoParallelIterator, ParallelIterator,
    };

    if size_of_val(gathered) < 1 << 20 {
        return gather(block, gathered);
    }
    let rows = block.len_of(Axis(0));
    let rows_each = rows.div_ceil(PARTS).max(TILE.min(rows));
    let mut places = ArrayViewMut2::from_shape((rows, gathered.len() / rows), gathered)?;
    let places = places.axis_chunks_iter_mut(Axis(0), rows_each).into_par_iter();
    places.zip(block.axis_chunks_iter(Axis(0), rows_each)).try_for_each(|(mut place, part)| {
        // Rows of a new view of a slice are contiguous.
        place.as_slice_mut().map_or(Ok(()), |place| gather(part, place))
    })
}

/// Copies a block into `gathered` in C order. Both have the same number of elements.
fn gather<T: ArrayElement>(block: ArrayViewD<'_, T>, gathered: &mut [T]) -> Result<(), ShapeError> {
    let last = block.ndim().saturating_sub(1);
    if is_run(&block, SHORT_RUN) {
        let runs = block.rows().into_iter().filter_map(|row| row.to_slice());
        let places = gathered.chunks_exact_mut(block.len_of(Axis(last)));
        places.zip(runs).for_each(|(place, run)| place.copy_from_slice(run));
        return Ok(());
    }
    if let Some(fast) = fastest_axis(&block)
        && fast != last
        && block.len_of(Axis(fast)) * block.len_of(Axis(last)) >= SMALL_PLANE
    {
        let gathered = ArrayViewMutD::from_shape(block.raw_dim(), gathered)?;
        // Both arrays get the axes of the plane last: the fast axis, then the last axis.
        let order: Vec<usize> =
            (0..last).filter(|&axis| axis != fast).chain([fast, last]).collect();
        return transpose(block.permuted_axes(&order[..]), gathered.permuted_axes(&order[..]));
    }
    // Neither the runs nor the planes are large enough to be worth their overhead.
    let mut places = gathered.iter_mut();
    block.iter().for_each(|&element| {
        if let Some(place) = places.next() {
            *place = element;
        }
    });
    Ok(())
}

/// The axis along which neighbours lie closest together in memory.
fn fastest_axis<T>(array: &ArrayViewD<'_, T>) -> Option<usize> {
    let (shape, strides) = (array.shape(), array.strides());
    // An axis of length 1 has no neighbours. A stride of 0 repeats one element.
    let axes = (0..array.ndim()).filter(|&axis| shape[axis] > 1 && strides[axis] != 0);
    axes.min_by_key(|&axis| strides[axis].unsigned_abs())
}

/// Copies plane by plane. The last two axes are those of a plane. The first of them is the fastest
/// axis of `from`.
fn transpose<T: ArrayElement>(
    from: ArrayViewD<'_, T>,
    mut to: ArrayViewMutD<'_, T>,
) -> Result<(), ShapeError> {
    if from.ndim() > 2 {
        return from
            .outer_iter()
            .zip(to.outer_iter_mut())
            .try_for_each(|(from, to)| transpose(from, to));
    }
    let (from, mut to) = (from.into_dimensionality::<Ix2>()?, to.into_dimensionality::<Ix2>()?);
    if from.ncols() < TILE {
        // Tiles would not help: the columns of `from` are contiguous or nearly so, and the few
        // elements of a row lie together in `to`.
        from.columns()
            .into_iter()
            .zip(to.columns_mut())
            .for_each(|(from, mut to)| to.assign(&from));
        return Ok(());
    }
    for (from, mut to) in
        from.axis_chunks_iter(Axis(0), TILE).zip(to.axis_chunks_iter_mut(Axis(0), TILE))
    {
        for (from, mut to) in
            from.axis_chunks_iter(Axis(1), TILE).zip(to.axis_chunks_iter_mut(Axis(1), TILE))
        {
            to.assign(&from);
        }
    }
    Ok(())
}
