//! [`TensorPart`]: an entire tensor, a rank's part, or a span.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Index, IntoIndices, RankPart};
use crate::format::error::ErrorKind;

/// The part of a tensor that one rank takes.
///
/// ```
/// use safetensors_core::slice::{RankPart, TensorPart};
///
/// // A fused QKV weight of 8 rows: 4 of the queries, 2 of the keys, 2 of the values.
/// let shape = [8, 16];
/// let keys = TensorPart::span(0, 4, 2);
/// assert_eq!(keys.ranges(&shape)?, [4..6, 0..16]);
/// let columns = TensorPart::from(RankPart::new(1, 1, 4));
/// assert_eq!(columns.shape(&shape)?, [8, 4]);
/// assert!(TensorPart::span(0, 6, 4).ranges(&shape).is_err());
/// # Ok::<(), safetensors_core::ErrorKind>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TensorPart {
    /// All of the tensor.
    #[default]
    Whole,
    /// One of several parts of a dimension.
    Rank(RankPart),
    /// Some positions: one of several fused weights, the head that several ranks share, or some
    /// experts.
    Span {
        /// The dimension that is cut.
        dim: usize,
        /// The first position.
        offset: usize,
        /// The number of positions.
        len: usize,
    },
}

impl TensorPart {
    /// Makes a [`Span`](Self::Span).
    pub const fn span(dim: usize, offset: usize, len: usize) -> Self {
        Self::Span { dim, offset, len }
    }

    /// Returns the positions of each dimension, outermost first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchDim`]; [`ErrorKind::NoSuchRank`]; [`ErrorKind::UnevenParts`], unless
    /// [`uneven`](RankPart::uneven) is set; [`ErrorKind::IndexOutOfBounds`].
    pub fn ranges(&self, shape: &[usize]) -> Result<Vec<Range<usize>>, ErrorKind> {
        let mut ranges: Vec<_> = shape.iter().map(|&len| 0..len).collect();
        let (dim, range) = match *self {
            Self::Whole => return Ok(ranges),
            Self::Rank(part) => (part.dim, part.range(shape)?),
            Self::Span { dim, offset, len } => (dim, span(shape, dim, offset, len)?),
        };
        if let Some(whole) = ranges.get_mut(dim) {
            *whole = range;
        }
        Ok(ranges)
    }

    /// Returns the shape of the part. Fails as [`ranges`](TensorPart::ranges).
    #[doc(hidden)]
    pub fn shape(&self, shape: &[usize]) -> Result<Vec<usize>, ErrorKind> {
        Ok(self.ranges(shape)?.into_iter().map(|range| range.len()).collect())
    }
}

impl IntoIndices for TensorPart {
    fn into_indices(self, shape: &[usize]) -> Result<Vec<Index>, ErrorKind> {
        let ranges = self.ranges(shape)?.into_iter().zip(shape);
        Ok(ranges.map(|(range, &len)| Index::within(range, len)).collect())
    }
}

impl IntoIndices for RankPart {
    fn into_indices(self, shape: &[usize]) -> Result<Vec<Index>, ErrorKind> {
        TensorPart::from(self).into_indices(shape)
    }
}

impl From<RankPart> for TensorPart {
    fn from(part: RankPart) -> Self {
        Self::Rank(part)
    }
}

fn span(shape: &[usize], dim: usize, offset: usize, len: usize) -> Result<Range<usize>, ErrorKind> {
    let &length = shape.get(dim).ok_or(ErrorKind::NoSuchDim { dim, ndim: shape.len() })?;
    let end = offset.saturating_add(len);
    if end > length {
        let asked = format!("{offset}..{end}");
        return Err(ErrorKind::IndexOutOfBounds { dim, len: length, asked });
    }
    Ok(offset..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_no_parts() {
        assert!(TensorPart::Whole.shape(&[]).unwrap().is_empty());
        let parts = [TensorPart::span(0, 0, 0), RankPart::new(0, 0, 1).into()];
        for part in parts {
            assert!(matches!(part.ranges(&[]), Err(ErrorKind::NoSuchDim { dim: 0, ndim: 0 })));
        }
    }

    #[test]
    fn a_span_ends_inside_its_dimension() {
        assert_eq!(TensorPart::span(1, 3, 0).shape(&[2, 3]).unwrap(), [2, 0]);
        for (offset, len) in [(3, 1), (0, 4), (usize::MAX, 1), (1, usize::MAX)] {
            let error = TensorPart::span(1, offset, len).ranges(&[2, 3]).unwrap_err();
            assert!(matches!(error, ErrorKind::IndexOutOfBounds { dim: 1, len: 3, .. }), "{error}");
        }
    }
}
