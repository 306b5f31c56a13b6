//! Copies a block of an array into C order. Elements are only moved.

use std::array;
#[cfg(feature = "rayon")]
use std::sync::LazyLock;

use ndarray::{ArrayView2, ArrayViewD, ArrayViewMut2, ArrayViewMutD, Axis, Ix2, ShapeError};
#[cfg(feature = "rayon")]
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::is_run;
use safetensors_core::element::Element;

/// The side, in elements, of square tiles.
// A tile of `f32` takes 16 KiB, so it stays in the first-level cache. Each of its sides takes
// several cache lines.
pub(super) const TILE: usize = 64;

/// Planes with fewer neighbours along the fastest axis are copied without tiles.
const NARROW: usize = 16;

/// Elements of at most this many bytes are transposed in squares.
// Compilers turn squares into vector instructions. Wider elements are faster one by one.
pub(super) const THIN: usize = 2;

/// The side, in elements, of the squares in a tile.
const SQUARE: usize = 4;

/// Planes of at least this many elements are transposed one plane at a time.
const SMALL_PLANE: usize = 64;

/// Contiguous runs of at least this many bytes are copied one run at a time.
const SHORT_RUN: usize = 32;

/// Blocks of at least this many bytes are copied by several threads.
#[cfg(feature = "rayon")]
const LARGE: usize = 256 << 10;

/// The parts of a block that are copied at the same time.
#[cfg(feature = "rayon")]
const PARTS: usize = 16;

#[derive(Clone, Copy)]
enum Way {
    /// The last axis is contiguous.
    Runs,
    /// Neighbours along this axis are closest together.
    Planes { fast: usize },
    /// Neither runs nor planes are large enough to be worth their overhead.
    Elements,
}

/// Copies a block to the same number of elements in C order.
pub(super) fn gather<T: Element>(
    block: ArrayViewD<'_, T>,
    gathered: &mut [T],
) -> Result<(), ShapeError> {
    let way = way(&block);
    let gathered = ArrayViewMutD::from_shape(block.raw_dim(), gathered)?;
    copy(block, gathered, way)
}

/// Threads that only copy.
// So one of them is always free after a while. The threads of the program's own pool may all be
// waiting for arrays to be written.
#[cfg(feature = "rayon")]
static THREADS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let name = |thread| format!("safetensors-gather-{thread}");
    ThreadPoolBuilder::new().thread_name(name).build().ok()
});

/// Copies a block by several threads. Must not be called in a thread of rayon.
// While it waits, such a thread would do other work of the program, which may need the lock under
// which this block is written.
#[cfg(feature = "rayon")]
pub(super) fn gather_in_parallel<T: Element>(
    block: ArrayViewD<'_, T>,
    gathered: &mut [T],
) -> Result<(), ShapeError> {
    match &*THREADS {
        Some(threads) if block.len() * size_of::<T>() >= LARGE => {
            let way = way(&block);
            let gathered = ArrayViewMutD::from_shape(block.raw_dim(), gathered)?;
            threads.install(|| in_parts(block, gathered, way))
        }
        _ => gather(block, gathered),
    }
}

/// [`gather`]: without the feature `rayon`, one thread copies.
#[cfg(not(feature = "rayon"))]
pub(super) use gather as gather_in_parallel;

fn way<T>(block: &ArrayViewD<'_, T>) -> Way {
    let last = block.ndim().saturating_sub(1);
    match fastest_axis(block) {
        _ if is_run(block, SHORT_RUN) => Way::Runs,
        Some(fast)
            if fast != last
                && block.len_of(Axis(fast)) * block.len_of(Axis(last)) >= SMALL_PLANE =>
        {
            Way::Planes { fast }
        }
        _ => Way::Elements,
    }
}

/// Returns the axis with the closest neighbours in memory.
pub(super) fn fastest_axis<T>(array: &ArrayViewD<'_, T>) -> Option<usize> {
    let strides = array.strides();
    // An axis of length 1 has no neighbours. A stride of 0 repeats one element.
    let axes = (0..array.ndim()).filter(|&axis| array.shape()[axis] > 1 && strides[axis] != 0);
    axes.min_by_key(|&axis| strides[axis].unsigned_abs())
}

/// Divides a block among the threads of the pool that this is called in.
#[cfg(feature = "rayon")]
fn in_parts<T: Element>(
    block: ArrayViewD<'_, T>,
    mut gathered: ArrayViewMutD<'_, T>,
    way: Way,
) -> Result<(), ShapeError> {
    use ndarray::parallel::prelude::{
        IndexedParallelIterator, IntoParallelIterator, ParallelIterator,
    };

    // Planes are cut so that every part has whole columns of them: these are contiguous in memory.
    let (axis, least) = match way {
        Way::Planes { .. } => (Axis(block.ndim() - 1), TILE),
        Way::Runs | Way::Elements => (Axis(0), 1),
    };
    let len = block.len_of(axis).div_ceil(PARTS).next_multiple_of(least);
    let places = gathered.axis_chunks_iter_mut(axis, len).into_par_iter();
    places
        .zip(block.axis_chunks_iter(axis, len))
        .try_for_each(|(place, part)| copy(part, place, way))
}

/// Copies elements to an array of the same shape.
fn copy<T: Element>(
    from: ArrayViewD<'_, T>,
    mut to: ArrayViewMutD<'_, T>,
    way: Way,
) -> Result<(), ShapeError> {
    match way {
        Way::Planes { fast } => {
            // Both arrays get the axes of the plane last: the fast axis, then the last axis.
            let last = from.ndim() - 1;
            let others = (0..last).filter(|&axis| axis != fast);
            let order: Vec<usize> = others.chain([fast, last]).collect();
            let from = from.permuted_axes(&order[..]);
            let mut to = to.permuted_axes(&order[..]);
            // As many columns of all planes as a tile is wide, before the next columns: these are
            // on as few memory pages at a time as possible.
            return from
                .axis_chunks_iter(Axis(last), TILE)
                .zip(to.axis_chunks_iter_mut(Axis(last), TILE))
                .try_for_each(|(from, to)| planes(from, to));
        }
        Way::Runs => {
            let runs = from.rows().into_iter().filter_map(|run| run.to_slice());
            // Both of these are cut along the first axis alone, so `to` is contiguous.
            let places = to.as_slice_mut().unwrap_or_default();
            let places = places.chunks_exact_mut(from.len_of(Axis(from.ndim() - 1)));
            places.zip(runs).for_each(|(place, run)| place.copy_from_slice(run));
        }
        Way::Elements => {
            let mut places = to.as_slice_mut().unwrap_or_default().iter_mut();
            from.iter().for_each(|&element| {
                if let Some(place) = places.next() {
                    *place = element;
                }
            });
        }
    }
    Ok(())
}

/// Copies planes of the last two axes: the fastest of `from`, and a contiguous one of `to`.
fn planes<T: Element>(
    from: ArrayViewD<'_, T>,
    mut to: ArrayViewMutD<'_, T>,
) -> Result<(), ShapeError> {
    if from.ndim() > 2 {
        return from
            .outer_iter()
            .zip(to.outer_iter_mut())
            .try_for_each(|(from, to)| planes(from, to));
    }
    let mut from = from.into_dimensionality::<Ix2>()?;
    let mut to = to.into_dimensionality::<Ix2>()?;
    if from.strides()[0] < 0 {
        // The other way round, the columns of `from` can be slices.
        from.invert_axis(Axis(0));
        to.invert_axis(Axis(0));
    }
    if from.ncols() < NARROW {
        // The columns of `from` are contiguous or nearly so, and the few elements of a row are
        // together in `to`.
        from.columns()
            .into_iter()
            .zip(to.columns_mut())
            .for_each(|(from, mut to)| to.assign(&from));
    } else if from.nrows() < NARROW {
        to.assign(&from);
    } else {
        transpose(&from, to);
    }
    Ok(())
}

/// Copies a plane of at most [`TILE`] columns tile by tile, through a tile with contiguous columns.
// So each cache line of `from` and of `to` is used once. This matters most where strides are powers
// of two: all lines of a tile then compete for a few places of the cache.
fn transpose<T: Element>(from: &ArrayView2<'_, T>, mut to: ArrayViewMut2<'_, T>) {
    let mut tile = [[T::zeroed(); TILE]; TILE];
    let places = to.axis_chunks_iter_mut(Axis(0), TILE);
    for (from, mut to) in from.axis_chunks_iter(Axis(0), TILE).zip(places) {
        for (line, column) in tile.iter_mut().zip(from.columns()) {
            match column.to_slice() {
                Some(column) => copy_line(column, line),
                None => line.iter_mut().zip(column).for_each(|(place, element)| *place = *element),
            }
        }
        let thin = (size_of::<T>() <= THIN).then(|| transposed(&tile));
        for (index, mut row) in (0..TILE).zip(to.rows_mut()) {
            // Rows of `to` are contiguous.
            let row = row.as_slice_mut().unwrap_or_default();
            match &thin {
                Some(tile) => row.copy_from_slice(&tile[index][..row.len()]),
                None => copy_across(&tile, index, row),
            }
        }
    }
}

/// Copies at most [`TILE`] elements, an entire line without a loop.
fn copy_line<T: Element>(from: &[T], to: &mut [T; TILE]) {
    match from.first_chunk() {
        Some(from) => *to = *from,
        None => to[..from.len()].copy_from_slice(from),
    }
}

/// Copies the elements at `index` of at most [`TILE`] lines, an entire row without a loop.
fn copy_across<T: Element>(tile: &[[T; TILE]; TILE], index: usize, row: &mut [T]) {
    match row.first_chunk_mut() {
        Some(row) => *row = array::from_fn::<_, TILE, _>(|line| tile[line][index]),
        None => row.iter_mut().zip(tile).for_each(|(place, line)| *place = line[index]),
    }
}

/// Returns the transpose of a tile, square by square.
fn transposed<T: Element>(tile: &[[T; TILE]; TILE]) -> [[T; TILE]; TILE] {
    let mut transposed = [[T::zeroed(); TILE]; TILE];
    for row in (0..TILE).step_by(SQUARE) {
        for column in (0..TILE).step_by(SQUARE) {
            let mut square = [[T::zeroed(); SQUARE]; SQUARE];
            for (place, line) in square.iter_mut().zip(&tile[row..]) {
                place.copy_from_slice(&line[column..][..SQUARE]);
            }
            for (i, line) in transposed[column..][..SQUARE].iter_mut().enumerate() {
                let elements: [T; SQUARE] = array::from_fn(|j| square[j][i]);
                line[row..][..SQUARE].copy_from_slice(&elements);
            }
        }
    }
    transposed
}
