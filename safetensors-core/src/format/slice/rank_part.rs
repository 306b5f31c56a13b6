//! [`RankPart`]: the part of a tensor that one rank holds.

use core::ops::Range;

use crate::format::error::ErrorKind;

/// The part number `rank` of dimension `dim`, cut into `world_size` equal parts.
///
/// ```
/// use safetensors_core::TensorView;
/// use safetensors_core::slice::RankPart;
///
/// let values: Vec<u8> = (0..8).collect();
/// let weight = TensorView::from_slice(&[2, 4], &values)?;
/// let part = weight.slice(RankPart::new(1, 1, 2))?;
/// assert_eq!(part.to_buf()?.into_vec::<u8>()?, [2, 3, 6, 7]);
/// assert!(weight.slice(RankPart::new(1, 0, 3)).is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankPart {
    /// The dimension that is cut.
    pub dim: usize,
    /// The number of this part, from 0.
    pub rank: usize,
    /// The number of parts.
    pub world_size: usize,
    /// Whether parts may differ in size: each has the length divided by `world_size`, rounded up,
    /// but the last ones have less.
    pub uneven: bool,
}

impl RankPart {
    /// Makes the part at `rank` of `world_size` equal parts of dimension `dim`.
    pub const fn new(dim: usize, rank: usize, world_size: usize) -> Self {
        Self { dim, rank, world_size, uneven: false }
    }

    /// Allows parts of different size.
    #[must_use]
    pub const fn uneven(mut self) -> Self {
        self.uneven = true;
        self
    }

    /// Fails as [`TensorPart::ranges`](super::TensorPart::ranges).
    pub(super) fn range(&self, shape: &[usize]) -> Result<Range<usize>, ErrorKind> {
        let Self { dim, rank, world_size, uneven } = *self;
        let &len = shape.get(dim).ok_or(ErrorKind::NoSuchDim { dim, ndim: shape.len() })?;
        if rank >= world_size {
            return Err(ErrorKind::NoSuchRank { rank, world_size });
        }
        if !len.is_multiple_of(world_size) && !uneven {
            return Err(ErrorKind::UnevenParts { dim, len, world_size });
        }
        let part = len.div_ceil(world_size);
        Ok(part.saturating_mul(rank).min(len)..part.saturating_mul(rank + 1).min(len))
    }
}
