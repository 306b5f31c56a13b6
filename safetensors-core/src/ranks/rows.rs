//! [`Rows`]: the bytes of parts that are cut along an inner dimension, and where they belong.

use std::ops::Range;

use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::load::streaming::PIECE;

/// A tensor consists of rows: the bytes of one position of all dimensions before the one that is
/// cut. Each row is divided among the parts.
///
/// Positions are counted in `u64`. A tensor can be longer than the memory of a 32-bit process, and
/// is gathered there nevertheless, because only some rows are held at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The number of rows.
    count: u64,
    /// The bytes of a row in each part.
    parts: Vec<u64>,
    /// The bytes of a row in the whole tensor.
    whole: u64,
}

impl Rows {
    /// The rows of a tensor that is not empty, cut along dimension `dim` into parts of these
    /// lengths.
    pub(super) fn new(
        dtype: Dtype,
        shape: &[usize],
        dim: usize,
        parts: impl Iterator<Item = usize>,
    ) -> Result<Self, ErrorKind> {
        let overflow = || ErrorKind::ShapeOverflow { shape: shape.to_vec() };
        // The bytes of the tensor fit into 64 bits, and so the bits into 128.
        let product = |dims: &[usize]| dims.iter().map(|&dim| dim as u128).product::<u128>();
        let row_bits = product(&shape[dim + 1..]) * u128::from(dtype.bits());
        let part = |len: usize| {
            let bits = len as u128 * row_bits;
            if !bits.is_multiple_of(8) {
                return Err(ErrorKind::SliceInsideByte { dtype });
            }
            u64::try_from(bits / 8).map_err(|_| overflow())
        };
        let parts = parts.map(part).collect::<Result<Vec<_>, _>>()?;
        let whole = parts.iter().try_fold(0_u64, |sum, &part| sum.checked_add(part));
        let (count, whole) = (u64::try_from(product(&shape[..dim])), whole.ok_or_else(overflow)?);
        Ok(Self { count: count.map_err(|_| overflow())?, parts, whole })
    }

    /// The bytes of a row in the whole tensor.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// The bytes of a row in each part.
    pub(super) fn parts(&self) -> &[u64] {
        &self.parts
    }

    /// Where the bytes of a row begin in a part that has `part` bytes of each.
    pub(super) fn start(row: u64, part: u64) -> u64 {
        // At most the length of the part.
        row * part
    }

    /// Groups of rows that are written at once, in order. The rows of a group fill at most one
    /// piece. A row that is longer than a piece is a group by itself.
    pub(super) fn groups(&self) -> impl Iterator<Item = Range<u64>> {
        let (count, most) = (self.count, (PIECE as u64 / self.whole.max(1)).max(1));
        let starts = (0..count.div_ceil(most)).map(move |group| group * most);
        starts.map(move |start| start..count.min(start.saturating_add(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges in each part of the first and the last group.
    fn ends(rows: &Rows) -> [Vec<Range<u64>>; 2] {
        let (first, last) = (rows.groups().next().unwrap(), rows.groups().last().unwrap());
        let range =
            |group: &Range<u64>, part| Rows::start(group.start, part)..Rows::start(group.end, part);
        [first, last].map(|group| rows.parts.iter().map(|&part| range(&group, part)).collect())
    }

    /// All numbers fit into 32 bits, and their products do not.
    #[test]
    fn positions_beyond_4_gib() {
        const GIB: u64 = 1 << 30;
        // 3 TiB of 3 MiB rows.
        let rows = Rows::new(Dtype::F32, &[1 << 20, 3, 1 << 18], 1, [1, 2].into_iter()).unwrap();
        assert_eq!(
            (rows.count, rows.whole, &rows.parts[..]),
            (1 << 20, 3 << 20, &[1 << 20, 2 << 20][..])
        );
        let [first, last] = ends(&rows);
        assert_eq!(first, [0..1 << 20, 0..2 << 20]);
        assert_eq!(last, [1024 * GIB - (1 << 20)..1024 * GIB, 2048 * GIB - (2 << 20)..2048 * GIB]);

        // 8 GiB of rows of 2 bytes.
        let rows = Rows::new(Dtype::U8, &[1 << 16, 1 << 16, 2], 2, [1, 1].into_iter()).unwrap();
        assert_eq!((rows.count, rows.whole), (4 * GIB, 2));
        assert_eq!(rows.groups().count(), 1 << 13);
        let [_, last] = ends(&rows);
        assert_eq!(last, [4 * GIB - (1 << 19)..4 * GIB, 4 * GIB - (1 << 19)..4 * GIB]);

        // Two rows of 12 GiB.
        let rows = Rows::new(Dtype::F64, &[2, 3, 1 << 29], 1, [2, 1].into_iter()).unwrap();
        let [first, last] = ends(&rows);
        assert_eq!(first, [0..8 * GIB, 0..4 * GIB]);
        assert_eq!(last, [8 * GIB..16 * GIB, 4 * GIB..8 * GIB]);
    }

    #[test]
    fn groups_are_all_rows_in_order() {
        for (count, width) in [(1, 1), (7, 300_000), (5, PIECE), (3, 2 * PIECE), (3_000_000, 1)] {
            let rows = Rows::new(Dtype::U8, &[count, width], 1, [width].into_iter()).unwrap();
            let mut end = 0;
            for group in rows.groups() {
                assert_eq!(group.start, end);
                assert!(group.end == end + 1 || (group.end - end) * rows.whole <= PIECE as u64);
                end = group.end;
            }
            assert_eq!(end, count as u64);
        }
    }

    #[test]
    fn half_a_byte_is_refused() {
        let error = Rows::new(Dtype::F4, &[2, 2], 1, [1, 1].into_iter()).unwrap_err();
        assert!(matches!(error, ErrorKind::SliceInsideByte { dtype: Dtype::F4 }), "{error}");
    }
}
