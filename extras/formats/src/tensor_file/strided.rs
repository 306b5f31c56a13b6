//! [`Placement`]: the places of elements in a storage.

use safetensors_core::checkpoint::Strided;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In C order without gaps, from this byte on.
    Contiguous(u64),
    Strided(Strided),
}

impl Placement {
    /// Places a tensor with elements of `width` bytes. `None` if it reaches past `available`
    /// elements, or past 2⁶⁴. `shape` and `strides`, in elements, have one length.
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
        // Distances that are not used may overflow.
        let used =
            shape.iter().zip(strides).map(|(&count, &stride)| if count > 1 { stride } else { 0 });
        let strided = Strided::of_elements(width, shape, &used.collect::<Vec<_>>(), offset);
        // A shape that overflows is refused later.
        let Ok(strided) = strided else { return Some(Self::Contiguous(0)) };
        Some(strided.contiguous().map_or(Self::Strided(strided), Self::Contiguous))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

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
                    let start = at as usize + range.start as usize * width;
                    prop_assert_eq!(&storage[start..start + expected.len()], expected);
                }
                Placement::Strided(strided) => {
                    let mut out = vec![0; expected.len()];
                    strided.read(&read, range.start * width as u64, &mut out).unwrap();
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
                    strided.read(&read, (number * block * width) as u64, part).unwrap();
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
        assert!(most.get() <= 1 << 10, "{}", most.get());
    }

    #[test]
    fn overflowing_placements_are_refused() {
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
