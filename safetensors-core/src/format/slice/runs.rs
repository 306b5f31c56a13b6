//! [`Runs`]: selected bytes as a regular pattern; [`ByteRuns`]: a pattern, or a list.

use alloc::vec::Vec;
use core::ops::Range;

/// Pieces of equal length, in nested repetition, by bytes of the tensor.
///
/// A piece begins at `start + i₀ × stride₀ + i₁ × stride₁ + …` for every `iₖ` below `countₖ`.
/// Column 1 of an F32 tensor of shape `[4, 3]` has `start` 4, `piece` 4 and one repeat: 4
/// positions, 12 bytes apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runs {
    pub(crate) start: u64,
    /// 0 if nothing is selected.
    pub(crate) piece: u64,
    /// Outermost first; empty for one piece.
    pub(crate) repeats: Vec<Repeat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Repeat {
    pub(crate) count: usize,
    pub(crate) stride: u64,
}

impl Runs {
    pub(crate) fn whole(bytes: u64) -> Self {
        Self { start: 0, piece: bytes, repeats: Vec::new() }
    }

    pub(crate) fn byte_len(&self) -> u64 {
        self.piece * self.piece_count()
    }

    /// `None` for several pieces.
    pub(crate) fn contiguous(&self) -> Option<u64> {
        self.repeats.is_empty().then_some(self.start)
    }

    /// Returns ascending runs. Pieces that touch are joined.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut pieces = self.pieces().peekable();
        core::iter::from_fn(move || {
            let mut run = pieces.next()?;
            // The last piece of a stepped dimension can touch the first piece of its next
            // repetition.
            while let Some(next) = pieces.next_if(|next| next.start == run.end) {
                run.end = next.end;
            }
            Some(run)
        })
    }

    /// Splits the pattern, in order, into the fewest parts of at most `bytes` bytes, or of a
    /// longer piece.
    pub(crate) fn split(self, bytes: u64) -> Vec<Self> {
        let Some((&Repeat { count, stride }, inner)) = self.repeats.split_first() else {
            return alloc::vec![self];
        };
        // A part takes all positions of the outermost repetition that fit together.
        let of_one = self.byte_len() / count as u64;
        let together = usize::try_from(bytes / of_one.max(1)).unwrap_or(count);
        let at = |position: usize, repeats| Self {
            start: self.start + position as u64 * stride,
            repeats,
            ..self
        };
        // Not even one position fits: split each position by its inner repetitions.
        if together == 0 {
            return (0..count)
                .flat_map(|position| at(position, inner.to_vec()).split(bytes))
                .collect();
        }
        let part = |position| {
            let count = together.min(count - position);
            // A repetition with one position is skipped, so that a single piece counts as
            // contiguous.
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

    pub(crate) fn end(&self) -> u64 {
        let last = self.piece_count().checked_sub(1);
        last.map_or(self.start, |last| self.start_of(last) + self.piece)
    }

    pub(crate) fn selected_before(&self, position: u64) -> u64 {
        // Pieces ascend, so the earlier ones come first.
        let mut before = 0;
        let mut after = self.piece_count();
        while before < after {
            let middle = before + (after - before) / 2;
            if self.start_of(middle) < position {
                before = middle + 1;
            } else {
                after = middle;
            }
        }
        let Some(last) = before.checked_sub(1) else { return 0 };
        last * self.piece + (position - self.start_of(last)).min(self.piece)
    }

    pub(crate) fn start_of(&self, mut piece: u64) -> u64 {
        let mut start = self.start;
        for repeat in self.repeats.iter().rev() {
            start += piece % repeat.count as u64 * repeat.stride;
            piece /= repeat.count as u64;
        }
        start
    }

    fn pieces(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.pieces_from(0)
    }

    fn pieces_from(&self, first: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut counters = alloc::vec![0; self.repeats.len()];
        let mut start = self.start;
        let mut rest = first;
        for (counter, repeat) in counters.iter_mut().zip(&self.repeats).rev() {
            *counter = (rest % repeat.count as u64) as usize;
            start += *counter as u64 * repeat.stride;
            rest /= repeat.count as u64;
        }
        let mut left = self.piece_count().saturating_sub(first);
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let piece = start..start + self.piece;
            // Count up like an odometer: advance the innermost repetition; when it is through,
            // reset it and advance the next. The step past the last position is never made, because
            // its offset may exceed 2⁶⁴.
            for (counter, repeat) in counters.iter_mut().zip(&self.repeats).rev() {
                if *counter + 1 < repeat.count {
                    *counter += 1;
                    start += repeat.stride;
                    break;
                }
                start -= repeat.stride * *counter as u64;
                *counter = 0;
            }
            Some(piece)
        })
    }
}

/// The bytes to read, by bytes of the tensor.
#[derive(Clone, Debug)]
pub(crate) enum ByteRuns {
    Pattern(Runs),
    /// Ascending and not empty. No two touch.
    Listed(Vec<Range<u64>>),
}

impl ByteRuns {
    pub(crate) fn byte_len(&self) -> u64 {
        match self {
            Self::Pattern(runs) => runs.byte_len(),
            Self::Listed(runs) => runs.iter().map(|run| run.end - run.start).sum(),
        }
    }

    /// `None` for several runs.
    pub(crate) fn contiguous(&self) -> Option<u64> {
        match self {
            Self::Pattern(runs) => runs.contiguous(),
            Self::Listed(runs) if runs.len() > 1 => None,
            Self::Listed(runs) => Some(runs.first().map_or(0, |run| run.start)),
        }
    }

    /// Returns ascending runs. No two touch.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let (pattern, listed) = match self {
            Self::Pattern(runs) => (Some(runs.iter()), &[][..]),
            Self::Listed(runs) => (None, &runs[..]),
        };
        pattern.into_iter().flatten().chain(listed.iter().cloned())
    }

    /// Splits the runs, in order, into parts of at most `bytes` bytes, or of a longer run or
    /// piece.
    pub(crate) fn split(&self, bytes: u64) -> Vec<Self> {
        let listed = match self {
            Self::Pattern(runs) => {
                return runs.clone().split(bytes).into_iter().map(Self::Pattern).collect();
            }
            Self::Listed(runs) => runs,
        };
        let mut parts = Vec::<Vec<_>>::new();
        let mut len = 0;
        for run in listed {
            let of_run = run.end - run.start;
            match parts.last_mut() {
                Some(part) if len + of_run <= bytes => part.push(run.clone()),
                _ => {
                    parts.push(alloc::vec![run.clone()]);
                    len = 0;
                }
            }
            len += of_run;
        }
        parts.into_iter().map(Self::Listed).collect()
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
            // The stride of each repetition is at least the extent of the pattern inside it.
            let mut extent = piece;
            let mut repeats = Vec::new();
            for (count, gap) in dims {
                let stride = extent + gap;
                repeats.insert(0, Repeat { count, stride });
                extent = stride * count as u64;
            }
            let runs = Runs { start: 5, piece, repeats };
            let bytes = |runs: &Runs| runs.iter().flatten().collect::<Vec<_>>();
            let parts = runs.clone().split(most);
            let lists = ByteRuns::Listed(runs.iter().collect()).split(most);
            prop_assert!(
                lists.iter().all(|part| part.byte_len() <= most || part.contiguous().is_some()),
                "{lists:?}"
            );
            prop_assert!(lists.iter().flat_map(ByteRuns::iter).eq(runs.iter()));
            prop_assert!(
                parts.iter().all(|part| part.byte_len() <= most || part.contiguous().is_some()),
                "{parts:?}"
            );
            prop_assert!(parts.iter().all(|part| bytes(part).len() as u64 == part.byte_len()));
            prop_assert_eq!(parts.iter().flat_map(bytes).collect::<Vec<_>>(), bytes(&runs));
            // Of any range, the same bytes.
            let all = bytes(&runs);
            prop_assert_eq!(all.last().map(|last| last + 1), Some(runs.end()));
            for range in [0..most, 5..6, most..most * 3, 7..runs.end(), runs.end()..u64::MAX] {
                let before = all.iter().filter(|byte| **byte < range.start).count() as u64;
                prop_assert_eq!(runs.selected_before(range.start), before);
            }
        }
    }
}
