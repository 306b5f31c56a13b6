//! [`Blocks`]: an array in parts that fit in a buffer.

use ndarray::{ArrayViewD, Axis};

use super::gather::{THIN, TILE, fastest_axis};

/// The least bytes of a buffer, unless the array has fewer.
// Today's second-level caches hold them.
const LEAST: usize = (2 << 20) / SMALLER;

/// The most bytes of a buffer for blocks in order.
// Only rows of 512 KiB or more need this much; rows of 256 KiB do if their elements are thin, see
// `rows`.
const MOST: usize = (32 << 20) / SMALLER;

/// The most bytes of a buffer for blocks in any order.
const CUT: usize = (8 << 20) / SMALLER;

/// Unit tests have smaller buffers, so that small arrays have many blocks.
const SMALLER: usize = if cfg!(test) { 64 } else { 1 };

/// Returns the least neighbours of the fastest axis in a block, unless their rows take more than
/// [`MOST`] bytes.
// In Fortran order the elements of a column are neighbours, and a block takes one for each of its
// rows. With fewer rows, cache lines are loaded again for the next block. Thin elements need more
// rows to fill a line.
const fn rows<T>() -> usize {
    if size_of::<T>() <= THIN { 2 * TILE } else { TILE }
}

/// Returns the length from which rows are cut where the order is free.
// A system call for fewer bytes takes longer than copying them.
const fn long_row<T>() -> usize {
    CUT / rows::<T>() / size_of::<T>()
}

#[derive(Debug)]
pub(super) struct Blocks<'a, T> {
    array: ArrayViewD<'a, T>,
    /// The most elements of a block.
    pub(super) most: usize,
    /// The axis with adjacent neighbours in memory, if its rows are cut.
    cut: Option<usize>,
}

/// The place of rows of equal length, in elements from the start of the array in C order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) start: usize,
    /// The distance from the start of a row to the next.
    pub(super) stride: usize,
    pub(super) len: usize,
}

type Work<'w, T, E> = dyn FnMut(ArrayViewD<'_, T>, Rows) -> Result<(), E> + 'w;

impl<'a, T> Blocks<'a, T> {
    /// Makes contiguous blocks, front to back, of two elements or more.
    pub(super) fn in_order(array: ArrayViewD<'a, T>) -> Self {
        let elements = |bytes: usize| bytes / size_of::<T>();
        let row_len = fastest_axis(&array).map_or(1, |fast| row_len(&array, fast));
        // A broadcast array can have more elements than any memory.
        let most = rows::<T>().saturating_mul(row_len);
        let most = most.clamp(elements(LEAST), elements(MOST)).min(array.len());
        Self { array, most, cut: None }
    }

    /// Makes blocks in any order that fit a cache for every shape.
    // A block takes `rows` neighbours in memory, and the part of their rows that there is room for.
    pub(super) fn in_any_order(array: ArrayViewD<'a, T>) -> Self {
        match fastest_axis(&array) {
            Some(fast) if row_len(&array, fast) > long_row::<T>() => {
                let most = (CUT / size_of::<T>()).min(array.len());
                Self { most, array, cut: Some(fast) }
            }
            _ => Self::in_order(array),
        }
    }

    /// Calls `work` with one block after the other, and with its place.
    pub(super) fn for_each<E>(&self, work: &mut Work<'_, T, E>) -> Result<(), E> {
        match self.cut {
            None => contiguous(self.array.view(), 0, self.most, work),
            Some(fast) => self.cut_rows(self.array.view(), 0, 0, fast, work),
        }
    }

    /// Cuts one index of each axis before `axis`, or some neighbours of the axis `fast`.
    fn cut_rows<E>(
        &self,
        part: ArrayViewD<'_, T>,
        axis: usize,
        start: usize,
        fast: usize,
        work: &mut Work<'_, T, E>,
    ) -> Result<(), E> {
        let longest = long_row::<T>();
        let step = row_len(&self.array, axis);
        let count = if axis == fast { rows::<T>() } else { (longest / step).max(1) };
        for (i, part) in part.axis_chunks_iter(Axis(axis), count).enumerate() {
            let start = start + i * count * step;
            if axis > fast && step <= longest {
                let len = part.len_of(Axis(axis)) * step;
                work(part, Rows { start, stride: row_len(&self.array, fast), len })?;
            } else {
                self.cut_rows(part, axis + 1, start, fast, work)?;
            }
        }
        Ok(())
    }
}

/// Cuts an array along its first axis, or an index with more than `most` elements along the next.
fn contiguous<T, E>(
    array: ArrayViewD<'_, T>,
    start: usize,
    most: usize,
    work: &mut Work<'_, T, E>,
) -> Result<(), E> {
    let step = row_len(&array, 0);
    let starts = (start..).step_by(step * (most / step).max(1));
    match most / step {
        0 => array
            .outer_iter()
            .zip(starts)
            .try_for_each(|(row, start)| contiguous(row, start, most, work)),
        rows => array.axis_chunks_iter(Axis(0), rows).zip(starts).try_for_each(|(block, start)| {
            let len = block.len();
            work(block, Rows { start, stride: len, len })
        }),
    }
}

/// Returns the elements from one index of an axis to the next in C order.
fn row_len<T>(array: &ArrayViewD<'_, T>, axis: usize) -> usize {
    array.shape()[axis + 1..].iter().product()
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn, ShapeBuilder};

    use super::*;

    /// Makes an array with the place of each element in C order as its value.
    fn counted(shape: &[usize], axes: &[usize]) -> ArrayD<u32> {
        let mut array = ArrayD::zeros(IxDyn(shape).f()).permuted_axes(axes);
        array.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
        array
    }

    /// Returns the most elements of a block, after a check that each element is in one block, at
    /// its place.
    fn check(array: &ArrayD<u32>, blocks: &Blocks<'_, u32>) -> usize {
        let mut seen = Vec::new();
        let mut largest = 0;
        let result: Result<(), ()> = blocks.for_each(&mut |block, rows| {
            largest = largest.max(block.len());
            let mut elements = block.iter().copied();
            for row in 0..block.len() / rows.len {
                let first = (rows.start + row * rows.stride) as u32;
                let places = first..first + rows.len as u32;
                let row = elements.by_ref().take(rows.len);
                assert!(row.eq(places.clone()), "{:?} {rows:?}", array.shape());
                seen.push(places);
            }
            Ok(())
        });
        result.unwrap();
        seen.sort_by_key(|places| places.start);
        let end = seen.iter().fold(0, |end, places| {
            assert_eq!(end, places.start, "{:?}", array.shape());
            places.end
        });
        assert_eq!(end as usize, array.len(), "{:?}", array.shape());
        largest
    }

    #[test]
    fn every_element_is_in_one_block_at_its_place() {
        for (shape, axes) in [
            (&[2, 3][..], &[0, 1][..]),
            (&[65, 10, 11], &[0, 1, 2]),
            (&[65, 10, 11], &[1, 0, 2]),
            (&[65, 16, 33], &[0, 1, 2]),
            (&[2, 65, 16, 33], &[0, 1, 2, 3]),
            (&[65, 2, 16, 33], &[1, 0, 2, 3]),
            (&[65, 9, 20, 2], &[0, 1, 2, 3]),
            (&[65, 9, 20, 2], &[2, 3, 0, 1]),
            (&[65, 9, 20, 2], &[1, 2, 3, 0]),
            (&[3, 625], &[0, 1]),
            (&[66, 626], &[0, 1]),
            (&[2, 2, 2, 2, 2, 2, 313], &[0, 1, 2, 3, 4, 5, 6]),
        ] {
            let array = counted(shape, axes);
            check(&array, &Blocks::in_order(array.view()));
            let largest = check(&array, &Blocks::in_any_order(array.view()));
            assert!(largest <= CUT / size_of::<u32>(), "{shape:?}");
        }
    }

    /// Matrices that are each transposed: only their rows must come together.
    #[test]
    fn a_block_is_no_larger_than_its_neighbours_need() {
        let matrices = counted(&[88, 88, 4], &[2, 0, 1]);
        assert_eq!(fastest_axis(&matrices.view()), Some(1));
        let largest = check(&matrices, &Blocks::in_any_order(matrices.view()));
        assert!(largest <= LEAST / size_of::<u32>(), "{largest}");
    }

    #[test]
    fn long_rows_are_cut_only_where_the_order_is_free() {
        let array = counted(&[70, 19, 33], &[0, 1, 2]);
        assert_eq!(Blocks::in_any_order(array.view()).cut, Some(0));
        assert_eq!(Blocks::in_order(array.view()).cut, None);
        let narrow = counted(&[1_563, 7], &[0, 1]);
        assert_eq!(Blocks::in_any_order(narrow.view()).cut, None);
    }
}
