//! [`Selection`]: the shape and the bytes of a slice.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use super::Index;
use super::runs::{Repeat, Runs};
use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;
use crate::format::tensor::shape;

/// The shape of a slice, and its bytes in order, as few runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Selection {
    shape: Vec<usize>,
    runs: Runs,
}

/// From `start` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) start: usize,
    pub(crate) count: usize,
    pub(crate) step: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct TakenDim {
    len: usize,
    pub(crate) positions: Positions,
    pub(crate) keeps_dim: bool,
}

impl Selection {
    /// Fails as [`TensorView::slice`](crate::TensorView::slice).
    pub(crate) fn new(dtype: Dtype, shape: &[usize], indices: &[Index]) -> Result<Self, ErrorKind> {
        shape::byte_len(dtype, shape)?;
        if indices.len() > shape.len() {
            return Err(ErrorKind::TooManyIndices { ndim: shape.len(), found: indices.len() });
        }
        let all = core::iter::repeat(&Index::ALL);
        let indices = indices.iter().chain(all).take(shape.len()).enumerate();
        let taken = indices.map(|(dim, &index)| TakenDim::new(shape, dim, index));
        let taken = taken.collect::<Result<Vec<_>, _>>()?;
        let runs = match taken.iter().any(|taken| taken.positions.count == 0) {
            true => Runs { start: 0, piece: 0, repeats: Vec::new() },
            false => Self::runs_of(dtype, &taken)?,
        };
        let kept = taken.iter().filter(|taken| taken.keeps_dim);
        Ok(Self { shape: kept.map(|taken| taken.positions.count).collect(), runs })
    }

    /// Computes the runs from the innermost dimension outwards.
    // The piece grows over each dimension, up to the first gap. Each dimension further out adds a
    // repetition if several of its positions are taken. In an F32 tensor of shape `[4, 3]`, rows 1
    // and 2 are a piece of 24 bytes at byte 12, and columns 0 and 1 a piece of 8 bytes, 4 times, 12
    // bytes apart.
    fn runs_of(dtype: Dtype, taken: &[TakenDim]) -> Result<Runs, ErrorKind> {
        // Everything is counted in bits, because elements of a sub-byte dtype have no byte address.
        // A tensor of up to 2⁶⁴ bytes has more bits than a `u64` can count.
        //
        // `stride` is the distance between two positions of the current dimension.
        let mut stride = u128::from(dtype.bits());
        let mut start = 0;
        let mut piece = stride;
        let mut repeats = Vec::new();
        for &TakenDim { len, positions, .. } in taken.iter().rev() {
            let Positions { start: first, count, step } = positions;
            start += first as u128 * stride;
            // The positions touch each other if the piece fills a whole position and none is
            // skipped. Then they extend the piece.
            if repeats.is_empty() && piece == stride && (step == 1 || count == 1) {
                piece = count as u128 * stride;
            } else if count > 1 {
                repeats.push((count, step as u128 * stride));
            }
            stride *= len as u128;
        }
        // The selected bytes are inside the tensor, so their offsets and lengths fit 64 bits. A
        // number of bits that does not fill bytes cannot be read, and is refused.
        let bytes = |bits: u128| u64::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8));
        let selected = || {
            let repeat = |&(count, stride)| Some(Repeat { count, stride: bytes(stride)? });
            let repeats = repeats.iter().rev().map(repeat).collect::<Option<_>>()?;
            Some((bytes(start)?, bytes(piece)?, repeats))
        };
        let (start, piece, repeats) = selected().ok_or(ErrorKind::SliceInsideByte { dtype })?;
        Ok(Runs { start, piece, repeats })
    }

    /// Returns a dimension for each range.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    #[cfg(feature = "__failpoints")]
    pub(crate) fn byte_len(&self) -> u64 {
        self.runs.byte_len()
    }

    /// Returns ascending runs, in the order of the result.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter()
    }

    /// Returns the shape and the runs.
    pub(crate) fn into_parts(self) -> (Vec<usize>, Runs) {
        (self.shape, self.runs)
    }
}

impl TakenDim {
    /// Checks an index of a dimension, and resolves negative positions.
    pub(crate) fn new(shape: &[usize], dim: usize, index: Index) -> Result<Self, ErrorKind> {
        let &len = shape.get(dim).ok_or(ErrorKind::NoSuchDim { dim, ndim: shape.len() })?;
        let out_of_bounds = || ErrorKind::IndexOutOfBounds { dim, len, asked: index.to_string() };
        // Counts a position from the start of the dimension. `limit` is the largest valid result:
        // `len` for the bounds of a range, `len - 1` for a single position.
        let resolve = |index: isize, limit: usize| {
            let distance = index.unsigned_abs();
            let position = if index < 0 { len.checked_sub(distance) } else { Some(distance) };
            position.filter(|&position| position <= limit).ok_or_else(out_of_bounds)
        };
        match index {
            Index::At(at) => {
                let last = len.checked_sub(1).ok_or_else(out_of_bounds)?;
                let positions = Positions { start: resolve(at, last)?, count: 1, step: 1 };
                Ok(Self { len, positions, keeps_dim: false })
            }
            Index::Range { step: 0, .. } => Err(ErrorKind::ZeroStep { dim }),
            Index::Range { start, end, step } => {
                let first = resolve(start.unwrap_or(0), len)?;
                let end = end.map_or(Ok(len), |end| resolve(end, len))?;
                let span = end.checked_sub(first).ok_or_else(out_of_bounds)?;
                let positions = Positions { start: first, count: span.div_ceil(step), step };
                Ok(Self { len, positions, keeps_dim: true })
            }
        }
    }
}

// No dimension has that length where addresses have 32 bits.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn tensors_with_more_bits_than_64_bits_can_count() {
        let last = Selection::new(Dtype::F64, &[8, 1 << 57], &[Index::from(7)]).unwrap();
        assert_eq!((last.runs().next(), last.runs().count()), (Some(7 << 60..8 << 60), 1));
        let columns =
            Selection::new(Dtype::U8, &[1 << 61, 4], &[Index::from(-2..), Index::from(3)]).unwrap();
        assert!(columns.runs().eq([(1 << 63) - 5..(1 << 63) - 4, (1 << 63) - 1..1 << 63]));
    }

    #[test]
    fn the_last_run_may_end_where_64_bits_do() {
        let half = 1 << 63;
        let selection =
            Selection::new(Dtype::U8, &[usize::MAX], &[Index::from(..).step(half)]).unwrap();
        let half = half as u64;
        assert!(selection.runs().eq([0..1, half..half + 1]));
    }
}
