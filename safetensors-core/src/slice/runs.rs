//! [`Runs`]: bytes of a tensor that are selected, piece by piece.

use alloc::vec::Vec;
use core::ops::Range;

/// Pieces of equal length that repeat at equal distances, in every dimension anew. Counted from the
/// tensor's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    /// The first byte.
    pub(super) start: u64,
    /// The bytes of one piece; 0 if nothing is selected.
    pub(super) piece: u64,
    /// How pieces repeat, outermost first.
    pub(super) repeats: Vec<Repeat>,
}

/// `count` positions that lie `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    pub(super) count: usize,
    pub(super) stride: u64,
}

impl Runs {
    /// So many bytes from the start on.
    #[cfg(feature = "std")]
    pub(crate) fn whole(bytes: u64) -> Self {
        Self { start: 0, piece: bytes, repeats: Vec::new() }
    }

    /// The number of bytes.
    #[cfg(feature = "std")]
    pub(crate) fn byte_len(&self) -> u64 {
        self.piece * self.piece_count()
    }

    /// Where the only run begins, if there is only one, or none.
    #[cfg(feature = "std")]
    pub(crate) fn contiguous(&self) -> Option<u64> {
        self.repeats.is_empty().then_some(self.start)
    }

    /// The runs, in ascending order; as few as possible: no two of them touch.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut pieces = self.pieces().peekable();
        core::iter::from_fn(move || {
            let mut run = pieces.next()?;
            // The last position of a stepped dimension can touch the first of its next turn.
            while let Some(next) = pieces.next_if(|next| next.start == run.end) {
                run.end = next.end;
            }
            Some(run)
        })
    }

    /// The same bytes in parts of at most `bytes` bytes, in order, as few as that allows; but a
    /// single piece is not cut.
    #[cfg(feature = "std")]
    pub(crate) fn split(self, bytes: u64) -> Vec<Self> {
        let Some((&Repeat { count, stride }, inner)) = self.repeats.split_first() else {
            return alloc::vec![self];
        };
        let of_one = self.byte_len() / count as u64;
        let together = usize::try_from(bytes / of_one.max(1)).unwrap_or(count);
        let at = |position: usize, repeats| Self {
            start: self.start + position as u64 * stride,
            repeats,
            ..self
        };
        if together == 0 {
            return (0..count)
                .flat_map(|position| at(position, inner.to_vec()).split(bytes))
                .collect();
        }
        let part = |position| {
            let count = together.min(count - position);
            let outer = (count > 1).then_some(Repeat { count, stride });
            at(position, outer.into_iter().chain(inner.iter().copied()).collect())
        };
        (0..count).step_by(together).map(part).collect()
    }

    fn piece_count(&self) -> u64 {
        if self.piece == 0 {
            0
        } else {
            self.repeats.iter().map(|repeat| repeat.count as u64).product()
        }
    }

    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut counters = alloc::vec![0; self.repeats.len()];
        let mut start = self.start;
        let mut left = self.piece_count();
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let piece = start..start + self.piece;
            // Count up like an odometer, innermost first.
            for (counter, repeat) in counters.iter_mut().zip(&self.repeats).rev() {
                *counter += 1;
                start += repeat.stride;
                if *counter < repeat.count {
                    break;
                }
                start -= repeat.stride * repeat.count as u64;
                *counter = 0;
            }
            Some(piece)
        })
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_small_and_together_the_same_bytes(
            piece in 1..9_u64,
            dims in prop::collection::vec((2..6_usize, 0..4_u64), 0..4),
            most in 1..200_u64,
        ) {
            // Each dimension is at least as far apart as what it repeats is long.
            let (mut extent, mut repeats) = (piece, Vec::new());
            for (count, gap) in dims {
                let stride = extent + gap;
                repeats.insert(0, Repeat { count, stride });
                extent = stride * count as u64;
            }
            let runs = Runs { start: 5, piece, repeats };
            let bytes = |runs: &Runs| runs.iter().flatten().collect::<Vec<_>>();
            let parts = runs.clone().split(most);
            prop_assert!(parts.iter().all(|part| part.byte_len() <= most || part.contiguous().is_some()), "{parts:?}");
            prop_assert!(parts.iter().all(|part| bytes(part).len() as u64 == part.byte_len()));
            prop_assert_eq!(parts.iter().flat_map(bytes).collect::<Vec<_>>(), bytes(&runs));
        }
    }
}
