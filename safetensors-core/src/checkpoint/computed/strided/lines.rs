//! [`Lines`]: the bytes of a piece, in a file and in a tensor.

use std::ops::Range;

use super::piece::Piece;
use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;
use crate::format::slice::{Repeat, Runs};

/// Bytes of a file with at most this many between them are read at once.
pub(super) const GAP: u64 = if cfg!(test) { 8 } else { 512 };

/// Units of at least this many bytes are read into their places.
const WIDE: u64 = if cfg!(test) { 32 } else { 4 << 10 };

/// The most columns of a block.
const MOST_COLUMNS: u64 = if cfg!(test) { 5 } else { 1 << 16 };

/// The bytes of a piece: units that are contiguous in the file and in the tensor.
///
/// The units are a matrix: each row has its units in the order of the tensor. Where the units of a
/// column are near each other in the file, they are read together.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(super) file: usize,
    /// The places of the units in the tensor, ascending.
    pub(super) to: Runs,
    /// Their offsets in the file, in the same order.
    pub(super) from: Runs,
    /// The dimension that the rows count.
    pub(super) row: Dim,
    /// The number of units of a row.
    pub(super) columns: u64,
    /// Whether the units of a column are near each other in the file.
    pub(super) is_near: bool,
}

/// Units along a dimension: their number, and how far apart they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dim<N = u64> {
    count: usize,
    pub(super) to: N,
    pub(super) from: N,
}

/// Some columns of some neighbouring rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) rows: Range<u64>,
    pub(super) columns: Range<u64>,
}

impl Lines {
    /// Finds the units of a piece of a tensor of this dtype and shape.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SliceInsideByte`].
    pub(super) fn new(dtype: Dtype, shape: &[usize], piece: &Piece) -> Result<Self, ErrorKind> {
        // In bits, because elements of a sub-byte dtype have no byte address.
        let bits = u128::from(dtype.bits());
        let mut unit = bits;
        let mut start = 0;
        let mut stride = bits;
        // Innermost first.
        let mut dims: Vec<Dim<u128>> = Vec::new();
        for (span, &len) in piece.spans.iter().zip(shape).rev() {
            let places = span.places;
            start += places.start as u128 * stride;
            let to = places.step as u128 * stride;
            let dim = Dim { count: places.count, to, from: u128::from(span.stride) * bits };
            stride *= len as u128;
            match dims.last_mut() {
                _ if dim.count == 1 => {}
                None if dim.to == unit && dim.from == unit => unit *= dim.count as u128,
                Some(inner) if inner.is_within(&dim) => inner.count *= dim.count,
                _ => dims.push(dim),
            }
        }
        dims.reverse();
        let first = u128::from(piece.first) * bits;
        let found = Self::in_bytes(piece, [start, first, unit], &dims);
        found.ok_or(ErrorKind::SliceInsideByte { dtype })
    }

    /// Returns `None` if a number of bits does not fill bytes.
    fn in_bytes(
        piece: &Piece,
        [start, first, unit]: [u128; 3],
        dims: &[Dim<u128>],
    ) -> Option<Self> {
        let bytes = |bits: u128| u64::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8));
        let unit = bytes(unit)?;
        let mut in_bytes = Vec::with_capacity(dims.len().max(1));
        for dim in dims {
            in_bytes.push(Dim { count: dim.count, to: bytes(dim.to)?, from: bytes(dim.from)? });
        }
        if in_bytes.is_empty() {
            in_bytes.push(Dim { count: 1, to: unit, from: unit });
        }
        let is_near = |dim: &Dim| unit < WIDE && dim.from <= unit.saturating_add(GAP);
        let last = in_bytes.len() - 1;
        let nearest = (0..=last).rev().min_by_key(|&dim| in_bytes[dim].from);
        let row = nearest.filter(|&dim| is_near(&in_bytes[dim])).unwrap_or(last);
        let runs = |start, of: fn(&Dim) -> u64| {
            let repeat = |dim: &Dim| Repeat { count: dim.count, stride: of(dim) };
            Runs { start, piece: unit, repeats: in_bytes.iter().map(repeat).collect() }
        };
        Some(Self {
            file: piece.file,
            to: runs(bytes(start)?, |dim| dim.to),
            from: runs(piece.offset.checked_add(bytes(first)?)?, |dim| dim.from),
            row: in_bytes[row],
            columns: in_bytes[row + 1..].iter().map(|dim| dim.count as u64).product(),
            is_near: is_near(&in_bytes[row]),
        })
    }

    pub(super) fn unit(&self) -> u64 {
        self.to.piece
    }

    /// Returns the place in the tensor of a unit, and its offset in the file.
    pub(super) fn place(&self, row: u64, column: u64) -> (u64, u64) {
        let unit = row * self.columns + column;
        (self.to.start_of(unit), self.from.start_of(unit))
    }

    /// Returns the bytes from the first unit of a column of a block to the last.
    pub(super) fn span(&self, block: &Block) -> u64 {
        (block.rows.end - block.rows.start - 1) * self.row.from + self.unit()
    }

    /// Returns whether a block has the same columns as one before, and rows that follow. They may
    /// share a row.
    pub(super) fn follows(&self, before: &Block, block: &Block) -> bool {
        let count = self.row.count as u64;
        let start = block.rows.start;
        before.columns == block.columns
            && before.rows.start / count == start / count
            && (before.rows.end - 1..=before.rows.end).contains(&start)
    }

    /// Divides the units with bytes of a range of the tensor into blocks of about this many bytes
    /// of the file, in the order of the tensor. The rows of a block are neighbours in its
    /// dimension. A block that begins or ends inside a row has it in full.
    pub(super) fn blocks(&self, range: Range<u64>, most: u64) -> impl Iterator<Item = Block> {
        let first = self.to.selected_before(range.start) / self.unit();
        let end = self.to.selected_before(range.end).div_ceil(self.unit());
        let (width, row) = (self.columns, self.row);
        let last = end.saturating_sub(1);
        let columns = match first / width == last / width {
            true => first % width..last % width + 1,
            false => 0..width,
        };
        let end = if first < end { end.div_ceil(width) } else { 0 };
        let together =
            (columns.end - columns.start).min(MOST_COLUMNS).min((most / self.unit()).max(1));
        // A place in memory that is read into takes some bytes, too.
        let of_row = together * if self.is_near { row.from } else { self.unit().max(64) };
        let mut next = (first / width, columns.start);
        std::iter::from_fn(move || {
            let (start, column) = next;
            if start >= end {
                return None;
            }
            let count = row.count as u64;
            let until = end.min((start / count + 1) * count);
            let rows = start..until.min(start.saturating_add((most / of_row).max(1)));
            let here = column..columns.end.min(column + together);
            next = match here.end == columns.end {
                true => (rows.end, columns.start),
                false => (start, here.end),
            };
            Some(Block { rows, columns: here })
        })
    }

    /// Returns the bytes of the file that are read for a block.
    pub(super) fn below(&self, block: &Block) -> impl Iterator<Item = Range<u64>> {
        let (row, span) = (block.rows.start, self.span(block));
        joined(block.columns.clone().map(move |column| {
            let (_, from) = self.place(row, column);
            from..from + span
        }))
    }
}

impl Dim<u128> {
    /// Returns whether this dimension goes on where a step of another one ends.
    fn is_within(&self, outer: &Self) -> bool {
        let count = self.count as u128;
        let is_step = outer.to == self.to * count && outer.from == self.from * count;
        is_step && self.count.checked_mul(outer.count).is_some()
    }
}

/// Joins ranges that follow each other with small gaps.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let Range { start, mut end } = ranges.next()?;
        while let Some(next) =
            ranges.next_if(|next| next.start >= start && next.start <= end.saturating_add(GAP))
        {
            end = end.max(next.end);
        }
        Some(start..end)
    })
}
