//! [`Selection`]: a sub-tensor as a shape and the fewest contiguous runs of bytes.

use alloc::vec::Vec;
use core::ops::Range;

use super::Index;
use super::runs::{Repeat, Runs};
use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::tensor::shape;

/// What a slice selects of a tensor: the shape of the result and where its bytes lie in the tensor.
///
/// The runs are in the order of the result and as few as possible: no two of them touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    shape: Vec<usize>,
    runs: Runs,
}

/// What is taken of one dimension, checked: `count` positions from `start` on, `step` apart.
#[derive(Clone, Copy)]
struct TakenDim {
    len: usize,
    start: usize,
    count: usize,
    step: usize,
    keeps_dim: bool,
}

impl Selection {
    /// What `indices` select of a tensor of this dtype and shape. Dimensions without an index are
    /// taken whole.
    ///
    /// # Errors
    ///
    /// Those of [`TensorView::slice`](crate::TensorView::slice).
    pub(crate) fn new(dtype: Dtype, shape: &[usize], indices: &[Index]) -> Result<Self, ErrorKind> {
        shape::byte_len(dtype, shape)?;
        if indices.len() > shape.len() {
            return Err(ErrorKind::TooManyIndices { ndim: shape.len(), found: indices.len() });
        }
        let all = core::iter::repeat(&Index::ALL);
        let taken = shape
            .iter()
            .zip(indices.iter().chain(all))
            .enumerate()
            .map(|(dim, (&len, &index))| TakenDim::new(dim, len, index))
            .collect::<Result<Vec<_>, _>>()?;
        let selected =
            taken.iter().filter(|taken| taken.keeps_dim).map(|taken| taken.count).collect();
        if taken.iter().any(|taken| taken.count == 0) {
            let runs = Runs { start: 0, piece: 0, repeats: Vec::new() };
            return Ok(Self { shape: selected, runs });
        }
        Self::from_taken(dtype, selected, &taken)
    }

    /// Works from the innermost dimension outwards, in bits: as long as whole dimensions are taken
    /// the piece grows; then every dimension of which more than one position is taken repeats it.
    fn from_taken(dtype: Dtype, shape: Vec<usize>, taken: &[TakenDim]) -> Result<Self, ErrorKind> {
        // Tensors of up to 2⁶⁴ bytes have more bits than 64 bits can count.
        let mut stride = u128::from(dtype.bits());
        let (mut start, mut piece) = (0, stride);
        let mut repeats = Vec::new();
        for taken in taken.iter().rev() {
            start += taken.start as u128 * stride;
            // Positions that touch extend the piece, as long as it has no gaps yet.
            if repeats.is_empty() && piece == stride && (taken.step == 1 || taken.count == 1) {
                piece = taken.count as u128 * stride;
            } else if taken.count > 1 {
                repeats.push((taken.count, taken.step as u128 * stride));
            }
            stride *= taken.len as u128;
        }
        // What is selected lies inside the tensor, so every number of bytes fits 64 bits.
        let bytes = |bits: u128| u64::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8));
        let selected = || {
            let repeat = |&(count, stride)| Some(Repeat { count, stride: bytes(stride)? });
            let repeats = repeats.iter().rev().map(repeat).collect::<Option<_>>()?;
            Some((bytes(start)?, bytes(piece)?, repeats))
        };
        let (start, piece, repeats) = selected().ok_or(ErrorKind::SliceInsideByte { dtype })?;
        Ok(Self { shape, runs: Runs { start, piece, repeats } })
    }

    /// The shape of the result: the dimensions of which a range was taken.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes of the result.
    #[cfg(feature = "std")]
    pub(crate) fn byte_len(&self) -> u64 {
        self.runs.byte_len()
    }

    /// Where the runs lie, counted from the tensor's first byte, in the order of the result, which
    /// is ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter()
    }

    /// The runs, to be read.
    #[cfg(feature = "std")]
    pub(crate) fn to_runs(&self) -> Runs {
        self.runs.clone()
    }
}

impl TakenDim {
    fn new(dim: usize, len: usize, index: Index) -> Result<Self, ErrorKind> {
        let out_of_bounds = |index| ErrorKind::IndexOutOfBounds { dim, len, index };
        // A position counted from the start; `len` itself is the end of a range but no position.
        let resolve = |index: isize, limit: usize| {
            let position = if index < 0 {
                len.checked_sub(index.unsigned_abs())
            } else {
                Some(index.unsigned_abs())
            };
            position.filter(|&position| position <= limit).ok_or_else(|| out_of_bounds(index))
        };
        match index {
            Index::At(at) => {
                let last = len.checked_sub(1).ok_or_else(|| out_of_bounds(at))?;
                Ok(Self { len, start: resolve(at, last)?, count: 1, step: 1, keeps_dim: false })
            }
            Index::Range { step: 0, .. } => Err(ErrorKind::ZeroStep { dim }),
            Index::Range { start, end, step } => {
                let first = resolve(start.unwrap_or(0), len)?;
                let end = end.map_or(Ok(len), |end| resolve(end, len))?;
                let span =
                    end.checked_sub(first).ok_or_else(|| out_of_bounds(start.unwrap_or(0)))?;
                Ok(Self { len, start: first, count: span.div_ceil(step), step, keeps_dim: true })
            }
        }
    }
}

#[cfg(test)]
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
}
