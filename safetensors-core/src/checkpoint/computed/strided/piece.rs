//! [`Piece`]: elements of a stored tensor, and their places in another tensor.

use crate::format::slice::{Positions, TakenDim};

/// Elements of a stored tensor, and their places in another tensor, dimension by dimension.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The number of the file.
    pub(crate) file: usize,
    /// The first byte of the stored tensor in the file.
    pub(crate) offset: u64,
    /// The first element, counted from the start of the stored tensor.
    pub(crate) first: u64,
    /// One for each dimension of the other tensor.
    pub(crate) spans: Vec<Span>,
}

/// The elements of a piece along a dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Their positions in the dimension. The step of a single one is 1.
    pub(crate) places: Positions,
    /// How far apart they are in the stored tensor, in elements.
    pub(crate) stride: u64,
}

impl Span {
    /// Returns a span of a single position.
    pub(crate) fn one(start: usize) -> Self {
        Self { places: Positions { start, count: 1, step: 1 }, stride: 0 }
    }

    /// Keeps the elements at the taken positions, and counts the positions anew. Also returns the
    /// number of elements before them; `None` if there are none.
    fn take(self, taken: Positions) -> Option<(Self, usize)> {
        let Positions { start, count, step } = self.places;
        let last_taken = taken.start + taken.count.checked_sub(1)? * taken.step;
        // Both are patterns, so one of these many elements is taken if any is.
        let apart = taken.step / gcd(step, taken.step);
        let first = taken.start.saturating_sub(start).div_ceil(step);
        let is_taken = |at: &usize| (start + at * step - taken.start).is_multiple_of(taken.step);
        let first = (first..count.min(first.saturating_add(apart))).find(is_taken)?;
        let last = (last_taken.checked_sub(start)? / step).min(count - 1);
        let more = last.checked_sub(first)? / apart;
        let place = (start + first * step - taken.start) / taken.step;
        if more == 0 {
            return Some((Self::one(place), first));
        }
        let places = Positions { start: place, count: more + 1, step: apart * step / taken.step };
        Some((Self { places, stride: self.stride * apart as u64 }, first))
    }
}

impl Piece {
    /// Makes a piece of elements that are contiguous in a file, from their first places and numbers
    /// in each dimension. `None` if there are no elements.
    pub(crate) fn contiguous(
        file: usize,
        offset: u64,
        places: impl DoubleEndedIterator<Item = (usize, usize)> + Clone,
    ) -> Option<Self> {
        if places.clone().any(|(_, count)| count == 0) {
            return None;
        }
        let mut stride = 1;
        let mut spans = Vec::new();
        for (start, count) in places.rev() {
            spans.push(Span { places: Positions { start, count, step: 1 }, stride });
            stride *= count as u64;
        }
        spans.reverse();
        Some(Self { file, offset, first: 0, spans })
    }

    /// Keeps the elements at some positions of a dimension. `None` if there are none.
    pub(crate) fn take(mut self, dim: usize, taken: TakenDim) -> Option<Self> {
        let span = self.spans.get_mut(dim)?;
        let (kept, before) = span.take(taken.positions)?;
        self.first += before as u64 * span.stride;
        *span = kept;
        if !taken.keeps_dim {
            self.spans.remove(dim);
        }
        Some(self)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
