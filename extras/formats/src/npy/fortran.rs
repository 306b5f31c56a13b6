//! Arrays in Fortran order, given in C order in bounded memory.
//!
//! An array that is larger than a block is cut into blocks: parts that are contiguous in C order.
//! A block is gathered from many runs of the file, transposed in memory, and given to the caller.
//! So every element is read once and moved twice in memory. If one slice along the first dimension
//! is larger than a block, the array is read once for each such slice.

use std::iter;

use safetensors_core::Result;

/// The most bytes that are transposed at once. There are two buffers of this size.
pub(super) const BLOCK: usize = 32 << 20;

/// Bytes that are skipped cost less to read than another request does, up to this many.
const NEAR: u64 = 4096;

/// The most bytes that are read at once where there are gaps.
const WINDOW: u64 = 1 << 20;

/// The side of a tile, in elements: one tile, of elements of any width, fits the first cache.
const TILE: usize = 32;

/// Fills a buffer with the bytes of an array from an offset on, counted from the first element.
pub(super) type ReadData<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// Takes a part of the array in C order.
pub(super) type Give<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

/// Returns `true` if Fortran order and C order differ for the shape.
pub(super) fn differs(shape: &[usize]) -> bool {
    shape.iter().filter(|&&dim| dim > 1).count() > 1 && !shape.contains(&0)
}

/// Gives all elements in C order, in parts of at most `block` bytes. Elements have `width` bytes,
/// which are 1, 2, 4 or 8. The size of the whole array fits 64 bits, and the orders
/// [differ](differs).
pub(super) fn transpose(
    data: &mut ReadData<'_>,
    shape: &[usize],
    width: usize,
    block: usize,
    give: &mut Give<'_>,
) -> Result<()> {
    let shape: Vec<_> = shape.iter().copied().filter(|&dim| dim > 1).collect();
    // A block has some of the positions along `axis`, one along those before it, and all along
    // those after it.
    let tail = |axis: usize| shape[axis..].iter().fold(width as u64, |len, &dim| len * dim as u64);
    let axis = (0..shape.len()).find(|&axis| tail(axis + 1) <= block as u64);
    let axis = axis.unwrap_or(shape.len().saturating_sub(1));
    let Some((&dim, inner)) = shape.get(axis).zip(shape.get(axis + 1..)) else {
        return Ok(());
    };
    let positions = ((block as u64 / tail(axis + 1)).max(1) as usize).min(dim);
    let largest = positions * tail(axis + 1) as usize;
    let mut buffers = [vec![0; largest], vec![0; largest]];
    let mut prefix = vec![0; axis];
    loop {
        for start in (0..dim).step_by(positions) {
            let positions = positions.min(dim - start);
            let part = ArrayPart { shape: &shape, prefix: &prefix, start, positions, width };
            let len = positions * tail(axis + 1) as usize;
            let [stored, transposed] = &mut buffers;
            part.gather(data, &mut stored[..len])?;
            let dims: Vec<_> = iter::once(positions).chain(inner.iter().copied()).collect();
            let from = &stored[..len];
            let to = &mut transposed[..len];
            match width {
                1 => in_memory::<1>(from, to, &dims),
                2 => in_memory::<2>(from, to, &dims),
                4 => in_memory::<4>(from, to, &dims),
                _ => in_memory::<8>(from, to, &dims),
            }
            give(to)?;
        }
        // The next prefix, the last index first.
        let next = (0..axis).rev().find(|&axis| {
            prefix[axis] = (prefix[axis] + 1) % shape[axis];
            prefix[axis] > 0
        });
        if next.is_none() {
            return Ok(());
        }
    }
}

/// A part of an array that is contiguous in C order.
struct ArrayPart<'a> {
    shape: &'a [usize],
    /// The indices along the first dimensions.
    prefix: &'a [usize],
    /// The first position, and the number of them, along the next dimension; all along the rest.
    start: usize,
    positions: usize,
    width: usize,
}

impl ArrayPart<'_> {
    /// Reads the elements of the part into `block`, in Fortran order.
    fn gather(&self, data: &mut ReadData<'_>, block: &mut [u8]) -> Result<()> {
        let axis = self.prefix.len();
        let width = self.width as u64;
        // The distance of neighbours along each dimension, in bytes; at the end, all bytes.
        let strides: Vec<u64> = iter::once(&1)
            .chain(self.shape)
            .scan(width, |stride, &dim| {
                *stride *= dim as u64;
                Some(*stride)
            })
            .collect();
        let stride = strides[axis];
        let outer = strides[axis + 1];
        let end = strides[self.shape.len()];
        let first: u64 =
            self.prefix.iter().zip(&strides).map(|(&i, stride)| i as u64 * stride).sum();
        let first = first + self.start as u64 * stride;

        // Along this dimension a part is one run, or one run for each position.
        let span = (self.positions as u64 - 1) * stride + width;
        let (run, step) = if stride == width { (span, span) } else { (width, stride) };
        let is_near = |gap: u64| gap <= NEAR;
        let window = match (is_near(step - run), is_near(outer - span)) {
            (true, true) => WINDOW,
            (true, false) if step > run => span.min(WINDOW),
            _ => 0,
        };
        let mut reader = Window { data, end, size: window, start: 0, bytes: Vec::new() };
        let mut runs = block.chunks_exact_mut(run as usize);
        let starts = (0..end / outer).map(|i| first + i * outer);
        for start in starts {
            for at in (start..start + span).step_by(step as usize) {
                let Some(run) = runs.next() else { return Ok(()) };
                reader.fill(at, run)?;
            }
        }
        Ok(())
    }
}

/// Reads runs that are close to each other together with the bytes between them.
struct Window<'a, 'd> {
    data: &'a mut ReadData<'d>,
    /// Where the data ends.
    end: u64,
    /// The bytes that are read at once; 0 if each run is read alone.
    size: u64,
    /// The bytes that were read last, and where they start.
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_, '_> {
    fn fill(&mut self, mut at: u64, mut run: &mut [u8]) -> Result<()> {
        // A run that is as large as the window gains nothing from it.
        if run.len() as u64 >= self.size {
            return (self.data)(at, run);
        }
        while !run.is_empty() {
            let skipped = at.checked_sub(self.start).filter(|&by| by < self.bytes.len() as u64);
            let Some(skipped) = skipped else {
                self.bytes.resize(self.size.min(self.end - at) as usize, 0);
                (self.data)(at, &mut self.bytes)?;
                self.start = at;
                continue;
            };
            let found = &self.bytes[skipped as usize..];
            let len = found.len().min(run.len());
            let (filled, rest) = run.split_at_mut(len);
            filled.copy_from_slice(&found[..len]);
            (run, at) = (rest, at + len as u64);
        }
        Ok(())
    }
}

/// Turns elements in Fortran order into C order. The shape is not empty, and matches the number of
/// elements.
///
/// Along the last dimension neighbours are next to each other in C order. In Fortran order they are
/// as far apart as possible, and all other elements at a position along it, a column here, are
/// next to each other. So this is the transposition of a matrix, with rows in another order. It
/// goes tile by tile, so that each line of the cache that is loaded is used whole.
fn in_memory<const W: usize>(from: &[u8], to: &mut [u8], shape: &[usize]) {
    let from = from.as_chunks::<W>().0;
    let to = to.as_chunks_mut::<W>().0;
    let Some((&columns, others)) = shape.split_last() else { return };
    let rows = from.len() / columns;
    let mut tile = [[[0; W]; TILE]; TILE];
    let mut row_index = Rows::new(others);
    for first_row in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - first_row);
        let mut places = [0; TILE];
        places[..height].fill_with(|| row_index.next_place());
        for first_column in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - first_column);
            for (column, line) in tile[..width].iter_mut().enumerate() {
                let start = (first_column + column) * rows + first_row;
                line[..height].copy_from_slice(&from[start..start + height]);
            }
            for (row, place) in places[..height].iter().enumerate() {
                let start = place * columns + first_column;
                for (element, line) in to[start..start + width].iter_mut().zip(&tile) {
                    *element = line[row];
                }
            }
        }
    }
}

/// The positions of rows in C order, in the order of Fortran.
struct Rows<'a> {
    shape: &'a [usize],
    /// How far apart neighbours along each dimension are.
    strides: Vec<usize>,
    index: Vec<usize>,
    place: usize,
}

impl<'a> Rows<'a> {
    fn new(shape: &'a [usize]) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        Self { shape, strides, index: vec![0; shape.len()], place: 0 }
    }

    fn next_place(&mut self) -> usize {
        let place = self.place;
        for (axis, &dim) in self.shape.iter().enumerate() {
            self.index[axis] += 1;
            self.place += self.strides[axis];
            if self.index[axis] < dim {
                break;
            }
            self.place -= dim * self.strides[axis];
            self.index[axis] = 0;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each element is its own number, in Fortran order.
    fn stored(shape: &[usize], width: usize) -> Vec<u8> {
        let count: usize = shape.iter().product();
        (0..count).flat_map(|i| (i as u64 + 1).to_le_bytes()[..width].to_vec()).collect()
    }

    /// Computes the elements in C order from the place of every single element.
    fn expected(shape: &[usize], width: usize) -> Vec<u8> {
        let count: usize = shape.iter().product();
        let number = |c_index: usize| {
            let (mut rest, mut index) = (c_index, vec![0; shape.len()]);
            for axis in (0..shape.len()).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            index.iter().zip(shape).rev().fold(0, |place, (i, dim)| place * dim + i) as u64 + 1
        };
        (0..count).flat_map(|i| number(i).to_le_bytes()[..width].to_vec()).collect()
    }

    /// Returns the result of `transpose`, the largest part, and the number of bytes that were read.
    fn transposed(shape: &[usize], width: usize, block: usize) -> (Vec<u8>, usize, u64) {
        let stored = stored(shape, width);
        let (mut given, mut largest, mut read) = (Vec::new(), 0, 0);
        let mut data = |offset: u64, buf: &mut [u8]| {
            let offset = offset as usize;
            buf.copy_from_slice(&stored[offset..offset + buf.len()]);
            read += buf.len() as u64;
            Ok(())
        };
        transpose(&mut data, shape, width, block, &mut |part| {
            largest = largest.max(part.len());
            given.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        (given, largest, read)
    }

    #[test]
    fn every_shape_comes_out_in_c_order_with_blocks_of_any_size() {
        let shapes: [&[usize]; 11] = [
            &[2, 3],
            &[3, 2],
            &[40, 70],
            &[1, 5, 1, 4],
            &[2, 3, 4],
            &[5, 1, 7, 3],
            &[65, 2, 33],
            &[3, 3, 20, 10],
            &[2, 2, 2, 2, 2, 2, 2],
            &[1000, 3],
            &[3, 1000],
        ];
        for shape in shapes {
            for width in [1, 2, 4, 8] {
                let expected = expected(shape, width);
                for block in [1, 9, 500, 4096, 1 << 20] {
                    let (given, largest, _) = transposed(shape, width, block);
                    assert!(given == expected, "{shape:?}, width {width}, blocks of {block}");
                    assert!(largest <= block.max(width), "{largest} {block}");
                }
            }
        }
    }

    #[test]
    fn runs_that_lie_far_apart_are_read_one_by_one() {
        // Blocks of 100 rows: runs of 400 bytes, 80,000 bytes apart.
        let (given, _, read) = transposed(&[20_000, 30], 4, 100 * 30 * 4);
        assert!(given == expected(&[20_000, 30], 4));
        assert_eq!(read, 20_000 * 30 * 4, "nothing is read twice");
    }

    #[test]
    fn runs_that_lie_close_are_read_together() {
        // One index along the first dimension is larger than a block: every third element.
        let shape = [3, 4000, 50];
        let (given, _, read) = transposed(&shape, 4, 1000 * 50 * 4);
        assert!(given == expected(&shape, 4));
        let all = 3 * 4000 * 50 * 4;
        assert!((2 * all..=3 * all).contains(&read), "{read}");
    }

    #[test]
    fn shapes_whose_orders_are_the_same() {
        for same in [&[][..], &[7], &[1, 7, 1], &[0, 3], &[2, 3, 0]] {
            assert!(!differs(same), "{same:?}");
        }
        assert!(differs(&[2, 3]) && differs(&[1, 2, 1, 3]));
    }

    #[test]
    fn an_error_ends_it() {
        let mut data = |_: u64, _: &mut [u8]| Ok(());
        let failed = || safetensors_core::ErrorKind::Io(std::io::ErrorKind::Other.into()).into();
        let mut given = 0;
        let result = transpose(&mut data, &[4, 4], 4, 16, &mut |_| {
            given += 1;
            Err(failed())
        });
        assert!(result.is_err());
        assert_eq!(given, 1);
        let mut data = |_: u64, _: &mut [u8]| Err(failed());
        assert!(transpose(&mut data, &[4, 4], 4, 16, &mut |_| Ok(())).is_err());
    }
}
