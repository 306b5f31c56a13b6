//! [`Strided`]: elements that are not in C order, gathered for any range of a tensor.
//!
//! A range is cut into boxes. Dimensions of a box with near neighbours in the file are read as one
//! window, and elements are picked in memory. Other dimensions cost one read for each position.

use std::io;
use std::ops::Range;

use super::boxes::{BoxAxis, Odometer, pick};

/// Skipping these bytes costs less than another request.
const NEAR: u64 = 4096;

const WINDOW: u64 = 4 << 20;

pub(super) type ReadBytes<'a> = dyn Fn(&mut [u8], u64) -> io::Result<()> + 'a;

/// Places of elements in a storage. Strides count elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    axes: Vec<Axis>,
    offset: u64,
    width: usize,
}

/// Positions, and elements between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    count: u64,
    stride: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Placement {
    /// In C order without gaps, from this element on.
    Contiguous(u64),
    Strided(Strided),
}

impl Placement {
    /// Places a tensor with elements of 1, 2, 4, 8 or 16 bytes. `None` if it reaches past
    /// `available` elements, or past 2⁶⁴. `shape` and `strides` have one length.
    pub(crate) fn new(
        shape: &[usize],
        strides: &[u64],
        offset: u64,
        width: usize,
        available: u64,
    ) -> Option<Self> {
        if shape.contains(&0) {
            return Some(Self::Contiguous(0));
        }
        let mut last = offset;
        for (&count, &stride) in shape.iter().zip(strides) {
            last = last.checked_add((count as u64 - 1).checked_mul(stride)?)?;
        }
        if last >= available || available.checked_mul(width as u64).is_none() {
            return None;
        }
        // Dimensions with one position are skipped, and neighbours that form one run are joined.
        let mut axes: Vec<Axis> = Vec::new();
        for (&count, &stride) in shape.iter().zip(strides).filter(|&(&count, _)| count > 1) {
            let axis = Axis { count: count as u64, stride };
            match axes.last_mut() {
                Some(outer) if Some(outer.stride) == stride.checked_mul(axis.count) => {
                    *outer = Axis { count: outer.count.checked_mul(axis.count)?, stride };
                }
                _ => axes.push(axis),
            }
        }
        match axes.as_slice() {
            [] | [Axis { stride: 1, .. }] => Some(Self::Contiguous(offset)),
            _ => Some(Self::Strided(Strided { axes, offset, width })),
        }
    }
}

impl Strided {
    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn read(&self, read: &ReadBytes<'_>, first: u64, out: &mut [u8]) -> io::Result<()> {
        let elements = (out.len() / self.width) as u64;
        self.fill(read, 0, self.offset, first..first + elements, out)
    }

    /// With the elements of the part that has the dimensions from `dim` on and begins at `base`.
    fn fill(
        &self,
        read: &ReadBytes<'_>,
        dim: usize,
        base: u64,
        elements: Range<u64>,
        out: &mut [u8],
    ) -> io::Result<()> {
        let Some(axis) = self.axes.get(dim) else { return Ok(()) };
        let inner: u64 = self.axes[dim + 1..].iter().map(|axis| axis.count).product();
        let mut position = elements.start / inner;
        let within = elements.start % inner;
        let mut left = elements.end - elements.start;
        let mut out = out;
        if within > 0 {
            let part = left.min(inner - within);
            let (head, rest) = out.split_at_mut(part as usize * self.width);
            let base = base + position * axis.stride;
            self.fill(read, dim + 1, base, within..within + part, head)?;
            (position, left, out) = (position + 1, left - part, rest);
        }
        let whole = left / inner;
        if whole > 0 {
            let (middle, rest) = out.split_at_mut((whole * inner) as usize * self.width);
            let mut axes = vec![BoxAxis { count: whole, stride: axis.stride, out: inner }];
            let mut below = inner;
            for axis in &self.axes[dim + 1..] {
                below /= axis.count;
                axes.push(BoxAxis { count: axis.count, stride: axis.stride, out: below });
            }
            self.copy_box(read, base + position * axis.stride, axes, middle)?;
            (position, left, out) = (position + whole, left - whole * inner, rest);
        }
        if left > 0 {
            self.fill(read, dim + 1, base + position * axis.stride, 0..left, out)?;
        }
        Ok(())
    }

    fn copy_box(
        &self,
        read: &ReadBytes<'_>,
        base: u64,
        mut axes: Vec<BoxAxis>,
        out: &mut [u8],
    ) -> io::Result<()> {
        let width = self.width as u64;
        axes.sort_by_key(|axis| axis.stride);
        // The window takes the nearest dimensions while they leave no large gaps. The last of them
        // is cut if it is too long.
        let mut span = width;
        let mut near = 0;
        let mut cut = None;
        for axis in &axes {
            let step = axis.stride * width;
            if cut.is_some() || step.saturating_sub(span) > NEAR {
                break;
            }
            let fitting = (WINDOW - span).checked_div(step).map_or(axis.count, |steps| steps + 1);
            cut = Some(fitting).filter(|fitting| *fitting < axis.count);
            span += (cut.unwrap_or(axis.count) - 1) * step;
            near += 1;
        }
        let (inside, outside) = axes.split_at(near);
        // Of the other dimensions, the nearest in the output is gathered, too: then complete lines
        // of the cache are written.
        let mut outside = outside.to_vec();
        let nearest = (0..outside.len()).min_by_key(|&axis| outside[axis].out);
        let gathered = nearest.map(|axis| outside.remove(axis));
        let gathered = gathered.unwrap_or(BoxAxis { count: 1, stride: 0, out: 0 });
        let at_once = (WINDOW / span).clamp(1, gathered.count);
        let mut window = vec![0; (at_once * span) as usize];
        let whole = inside.last().map_or(1, |axis| axis.count);
        let step = cut.unwrap_or(whole).max(1);
        let mut at = Odometer::over(&outside);
        loop {
            for first in (0..gathered.count).step_by(at_once as usize) {
                let lines = at_once.min(gathered.count - first);
                for start in (0..whole).step_by(step as usize) {
                    let mut part = inside.to_vec();
                    let mut from = base + at.from + first * gathered.stride;
                    let mut to = at.to + first * gathered.out;
                    if let Some(axis) = part.last_mut() {
                        from += start * axis.stride;
                        to += start * axis.out;
                        axis.count = step.min(whole - start);
                    }
                    let reach: u64 = part.iter().map(|axis| (axis.count - 1) * axis.stride).sum();
                    let len = ((reach + 1) * width) as usize;
                    for (line, bytes) in (0..lines).zip(window.chunks_exact_mut(span as usize)) {
                        read(&mut bytes[..len], (from + line * gathered.stride) * width)?;
                    }
                    part.push(BoxAxis { count: lines, stride: span / width, ..gathered });
                    pick(self.width, &window, &part, &mut out[(to * width) as usize..]);
                }
            }
            if !at.advance() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(
        storage: &[u8],
        shape: &[usize],
        strides: &[u64],
        offset: u64,
        width: usize,
        range: std::ops::Range<u64>,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        for element in range {
            let (mut rest, mut at) = (element, offset);
            for (&count, &stride) in shape.iter().zip(strides).rev() {
                at += rest % count as u64 * stride;
                rest /= count as u64;
            }
            out.extend_from_slice(&storage[at as usize * width..][..width]);
        }
        out
    }

    proptest! {
        #[test]
        fn every_range_of_every_view_is_gathered(
            dims in prop::collection::vec((1..6_usize, 0..40_u64), 0..5),
            offset in 0..9_u64,
            width in prop::sample::select(vec![1, 2, 4, 8, 16_usize]),
            bounds in (0.0..1.0_f64, 0.0..1.0_f64),
        ) {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let last: u64 =
                shape.iter().zip(&strides).map(|(&n, s)| (n as u64 - 1) * s).sum::<u64>() + offset;
            let storage: Vec<u8> =
                (0..(last + 1) * width as u64).map(|i| (i * 7 % 251) as u8).collect();
            let count: u64 = shape.iter().map(|&n| n as u64).product();
            let (a, b) = ((bounds.0 * count as f64) as u64, (bounds.1 * count as f64) as u64);
            let range = a.min(b)..a.max(b) + 1;
            let expected = naive(&storage, &shape, &strides, offset, width, range.clone());
            let read = |buf: &mut [u8], at: u64| {
                buf.copy_from_slice(&storage[at as usize..at as usize + buf.len()]);
                Ok(())
            };
            match Placement::new(&shape, &strides, offset, width, last + 1).unwrap() {
                Placement::Contiguous(at) => {
                    let start = (at + range.start) as usize * width;
                    prop_assert_eq!(&storage[start..start + expected.len()], expected);
                }
                Placement::Strided(strided) => {
                    let mut out = vec![0; expected.len()];
                    strided.read(&read, range.start, &mut out).unwrap();
                    prop_assert_eq!(out, expected);
                }
            }
            prop_assert!(Placement::new(&shape, &strides, offset, width, last).is_none());
        }
    }

    fn fortran(shape: &[usize]) -> Vec<u64> {
        shape
            .iter()
            .scan(1, |stride, &dim| Some(std::mem::replace(stride, *stride * dim as u64)))
            .collect()
    }

    fn in_blocks(shape: &[usize], width: usize, block: usize) -> (Vec<u8>, u64) {
        let count: usize = shape.iter().product();
        let element = |number: usize| (number as u128 + 1).to_le_bytes();
        let read_bytes = std::cell::Cell::new(0);
        let read = |buf: &mut [u8], at: u64| {
            read_bytes.set(read_bytes.get() + buf.len() as u64);
            for (element_of, number) in buf.chunks_mut(width).zip(at as usize / width..) {
                element_of.copy_from_slice(&element(number)[..width]);
            }
            Ok(())
        };
        let strides = fortran(shape);
        let mut out = vec![0; count * width];
        match Placement::new(shape, &strides, 0, width, count as u64).unwrap() {
            Placement::Contiguous(_) => read(&mut out, 0).unwrap(),
            Placement::Strided(strided) => {
                for (number, part) in out.chunks_mut(block * width).enumerate() {
                    strided.read(&read, (number * block) as u64, part).unwrap();
                }
            }
        }
        (out, read_bytes.get())
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
            let count: usize = shape.iter().product();
            for width in [1, 2, 4, 8, 16] {
                let all: Vec<u8> = (0..count)
                    .flat_map(|i| (i as u128 + 1).to_le_bytes()[..width].to_vec())
                    .collect();
                let range = 0..count as u64;
                let expected = naive(&all, shape, &fortran(shape), 0, width, range);
                for block in [1, 9, 500, 4096, 1 << 20] {
                    let (found, _) = in_blocks(shape, width, block);
                    assert!(found == expected, "{shape:?}, width {width}, blocks of {block}");
                }
            }
        }
    }

    #[test]
    fn runs_that_are_far_apart_are_read_one_by_one_and_close_ones_together() {
        // Blocks of 100 rows: runs of 400 bytes, 80,000 bytes apart. Nothing is read twice.
        assert_eq!(in_blocks(&[20_000, 30], 4, 100 * 30).1, 20_000 * 30 * 4);
        // One index along the first dimension is larger than a block: every third element.
        let all = 3 * 4000 * 50 * 4;
        let (_, read) = in_blocks(&[3, 4000, 50], 4, 1000 * 50);
        assert!((2 * all..=3 * all).contains(&read), "{read}");
    }

    #[test]
    fn an_error_of_a_read_ends_it() {
        let placement = Placement::new(&[4, 4], &[1, 4], 0, 4, 16);
        let Some(Placement::Strided(strided)) = placement else { panic!("not strided") };
        let read = |_: &mut [u8], _: u64| Err(io::ErrorKind::Other.into());
        assert!(strided.read(&read, 0, &mut [0; 64]).is_err());
    }

    #[test]
    fn a_transposed_matrix_needs_few_reads_and_little_memory() {
        // 3,000 × 2,000 of four bytes, in Fortran order: 24 MB.
        let (rows, columns) = (3000_usize, 2000_usize);
        let placement = Placement::new(&[rows, columns], &[1, rows as u64], 0, 4, 6_000_000);
        let Some(Placement::Strided(strided)) = placement else { panic!("not strided") };
        let (reads, most) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let read = |buf: &mut [u8], at: u64| {
            reads.set(reads.get() + 1);
            most.set(most.get().max(buf.len()));
            buf.chunks_exact_mut(4).zip(at as u32 / 4..).for_each(|(element, number)| {
                element.copy_from_slice(&number.to_le_bytes());
            });
            Ok(())
        };
        let mut out = vec![0; 1 << 20];
        strided.read(&read, 0, &mut out).unwrap();
        for (i, element) in out.chunks_exact(4).enumerate() {
            let expected = (i % columns * rows + i / columns) as u32;
            assert_eq!(element, expected.to_le_bytes(), "{i}");
        }
        // A run along the rows for each column, for the whole rows and for the rest.
        assert!(reads.get() <= 2 * columns, "{}", reads.get());
        assert!(most.get() as u64 <= WINDOW);
    }

    #[test]
    fn what_overflows_is_refused() {
        let most = u64::MAX;
        assert!(Placement::new(&[u32::MAX as usize, 2], &[1 << 33, 1], 0, 4, most / 4).is_none());
        assert!(Placement::new(&[2], &[most], 1, 1, most).is_none());
        assert!(Placement::new(&[1], &[1], most, 1, most).is_none());
        assert!(Placement::new(&[1], &[1], 0, 4, most).is_none());
        assert!(matches!(
            Placement::new(&[0, 3], &[3, 1], most, 4, 0),
            Some(Placement::Contiguous(0))
        ));
    }
}
