//! [`Lines`]: the bytes of a piece, in a file and in a tensor.

use std::ops::Range;

use super::piece::Piece;
use crate::format::slice::{Repeat, Runs};

/// Bytes of a file with at most this many between them are read at once.
pub(super) const GAP: u64 = if cfg!(test) { 8 } else { 512 };

/// Units of at least this many bytes are read into their places.
pub(super) const WIDE: u64 = if cfg!(test) { 32 } else { 4 << 10 };

/// The most bytes that are held before they are in their places.
pub(super) const MOST: u64 = if cfg!(test) { 1 << 8 } else { 16 << 20 };

/// The most columns of a run.
const MOST_COLUMNS: u64 = if cfg!(test) { 5 } else { 1 << 16 };

/// The bytes of a piece: units that are contiguous in the file and in the tensor. Units along the
/// innermost dimension are the columns of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) file: usize,
    /// The places of the units in the tensor, ascending.
    pub(super) to: Runs,
    /// Their offsets in the file, in the same order.
    pub(super) from: Runs,
}

/// Units of a line of `count`. They are `step` bytes apart in the file, and `to_step` bytes in the
/// tensor.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) file: usize,
    /// The bytes of a unit.
    pub(super) unit: u64,
    pub(super) count: u64,
    pub(super) columns: Range<u64>,
    /// The offset of column 0 in the file.
    pub(super) from: u64,
    pub(super) step: u64,
    /// The place of column 0 in the tensor.
    pub(super) to: u64,
    pub(super) to_step: u64,
}

/// Elements along a dimension: their number, and how far apart they are.
struct Dim {
    count: u128,
    to: u128,
    from: u128,
}

impl Lines {
    /// Finds the units of a piece of a tensor with this shape, and elements of these bits. `None`
    /// if some do not fill bytes.
    pub(super) fn new(bits: usize, shape: &[usize], piece: &Piece) -> Option<Self> {
        let bytes = |elements: u128| {
            // Elements of a sub-byte dtype have no byte address.
            let bits = elements * bits as u128;
            u64::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8))
        };
        let mut unit = 1;
        let mut start = 0;
        let mut stride = 1;
        // Innermost first.
        let mut dims: Vec<Dim> = Vec::new();
        for (span, &len) in piece.spans.iter().zip(shape).rev() {
            let places = span.places;
            start += places.start as u128 * stride;
            let to = places.step as u128 * stride;
            let dim = Dim { count: places.count as u128, to, from: span.stride.into() };
            stride *= len as u128;
            match dims.last_mut() {
                _ if dim.count == 1 => {}
                None if dim.to == unit && dim.from == unit => unit *= dim.count,
                Some(inner) if inner.is_within(&dim) => inner.count *= dim.count,
                _ => dims.push(dim),
            }
        }
        let runs = |start, of: fn(&Dim) -> u128| {
            let repeat = |dim: &Dim| {
                Some(Repeat { count: usize::try_from(dim.count).ok()?, stride: bytes(of(dim))? })
            };
            let repeats = dims.iter().rev().map(repeat).collect::<Option<_>>()?;
            Some(Runs { start, piece: bytes(unit)?, repeats })
        };
        let first = piece.offset.checked_add(bytes(piece.first.into())?)?;
        let to = runs(bytes(start)?, |dim| dim.to)?;
        Some(Self { file: piece.file, to, from: runs(first, |dim| dim.from)? })
    }

    /// Returns whether the units of a line are small and far apart in the file.
    pub(super) fn is_turned(&self) -> bool {
        let unit = self.to.piece;
        unit < WIDE && self.from.repeats.last().is_some_and(|line| line.stride > unit + GAP)
    }

    /// Returns the units with bytes of a range of the tensor, in its order. One that begins or ends
    /// outside of the range is cut.
    pub(super) fn runs(&self, range: Range<u64>) -> impl Iterator<Item = Run> {
        let (file, unit) = (self.file, self.to.piece);
        let mut next = self.to.selected_before(range.start);
        let end = self.to.selected_before(range.end);
        let line =
            |runs: &Runs| runs.repeats.last().map_or((1, 0), |it| (it.count as u64, it.stride));
        let ((count, to_step), (_, step)) = (line(&self.to), line(&self.from));
        std::iter::from_fn(move || {
            let left = end.checked_sub(next).filter(|left| *left > 0)?;
            let (number, skipped) = (next / unit, next % unit);
            let (to, from) = (self.to.start_of(number), self.from.start_of(number));
            if skipped > 0 || left < unit || unit >= WIDE {
                let unit = left.min(unit - skipped);
                next += unit;
                let (from, to) = (from + skipped, to + skipped);
                let (count, columns) = (1, 0..1);
                return Some(Run { file, unit, count, columns, from, step: 0, to, to_step: 0 });
            }
            let column = number % count;
            let most = most_columns(unit, step);
            let until = count.min(column - column % most + most);
            let columns = column..until.min(column + left / unit);
            next += (columns.end - column) * unit;
            let (from, to) = (from - column * step, to - column * to_step);
            Some(Run { file, unit, count, columns, from, step, to, to_step })
        })
    }
}

/// Runs are cut at multiples of this number.
fn most_columns(unit: u64, step: u64) -> u64 {
    let bytes = if step > unit + GAP { unit } else { step };
    (MOST / bytes.max(unit)).clamp(1, MOST_COLUMNS)
}

impl Run {
    /// Runs that are read together have this in common. So each has the columns of all.
    pub(super) fn group(&self) -> (usize, [u64; 4]) {
        let Self { file, unit, step, count, .. } = *self;
        (file, [unit, step, count, self.columns.start / most_columns(unit, step)])
    }
}

impl Dim {
    /// Returns whether this dimension goes on where a step of another one ends.
    fn is_within(&self, outer: &Self) -> bool {
        let is_step = outer.to == self.to * self.count && outer.from == self.from * self.count;
        is_step && usize::try_from(self.count * outer.count).is_ok()
    }
}
