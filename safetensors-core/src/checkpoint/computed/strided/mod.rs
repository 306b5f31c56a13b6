//! [`Strided`]: a tensor that is made of elements of stored tensors, as bytes.
//!
//! `piece.rs` has the elements, `lines.rs` their bytes, and `read.rs` reads them.

mod lines;
pub(crate) mod piece;
pub(crate) mod read;

use std::ops::Range;

use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::shape::byte_len;
use lines::{Lines, Run};
use piece::Piece;

/// A tensor that is made of pieces of stored tensors. Each of its elements is in one of them.
#[derive(Debug)]
pub(crate) struct Strided {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// In the order of their first bytes in the tensor, each with the largest end of it and those
    /// before it.
    pieces: Vec<(Lines, u64)>,
}

impl Strided {
    /// Makes a tensor of pieces, none of which is empty.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SliceInsideByte`]; [`ErrorKind::PartialByte`]; [`ErrorKind::ShapeOverflow`].
    pub(crate) fn new(
        name: &str,
        dtype: Dtype,
        shape: Vec<usize>,
        pieces: &[Piece],
    ) -> Result<Self> {
        byte_len(dtype, &shape)?;
        let mut placed = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let lines = Lines::new(dtype.bits() as usize, &shape, piece);
            placed.push((lines.ok_or(ErrorKind::SliceInsideByte { dtype })?, 0));
        }
        placed.sort_unstable_by_key(|(lines, _)| lines.to.start);
        let mut furthest = 0;
        for (lines, end) in &mut placed {
            furthest = lines.to.end().max(furthest);
            *end = furthest;
        }
        Ok(Self { name: name.to_owned(), dtype, shape, pieces: placed })
    }

    /// Returns the units with bytes of a range of the tensor.
    fn runs(&self, range: Range<u64>) -> impl Iterator<Item = Run> {
        let end = self.pieces.partition_point(|(lines, _)| lines.to.start < range.end);
        let begin = self.pieces[..end].partition_point(|(_, furthest)| *furthest <= range.start);
        self.pieces[begin..end].iter().flat_map(move |(lines, _)| lines.runs(range.clone()))
    }

    /// Returns whether elements are neighbours in a file that are far apart in the tensor.
    pub(super) fn is_turned(&self) -> bool {
        self.pieces.iter().any(|(lines, _)| lines.is_turned())
    }

    /// Returns the number of the file of each piece, the offset of its first byte there, and the
    /// number of its bytes.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        self.pieces.iter().map(|(Lines { file, to, from }, _)| (*file, from.start, to.byte_len()))
    }
}
