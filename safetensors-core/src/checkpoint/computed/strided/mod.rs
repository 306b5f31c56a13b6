//! [`Strided`]: a tensor that is made of elements of stored tensors, as bytes.
//!
//! `piece.rs` has the elements, `lines.rs` their bytes, and `read.rs` reads them.

mod lines;
pub(crate) mod piece;
pub(super) mod read;

use std::ops::Range;

use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::tensor::shape::byte_len;
use lines::Lines;
use piece::Piece;

/// A tensor that is made of pieces of stored tensors. Each of its elements is in one of them.
#[derive(Debug)]
pub(crate) struct Strided {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// In the order of their first bytes in the tensor, each with the largest end of it and those
    /// before it.
    pieces: Vec<(Lines, u64)>,
}

impl Strided {
    /// Makes a tensor of pieces.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SliceInsideByte`](crate::ErrorKind::SliceInsideByte);
    /// [`ErrorKind::PartialByte`](crate::ErrorKind::PartialByte);
    /// [`ErrorKind::ShapeOverflow`](crate::ErrorKind::ShapeOverflow).
    pub(crate) fn new(
        name: &str,
        dtype: Dtype,
        shape: Vec<usize>,
        pieces: &[Piece],
    ) -> Result<Self> {
        byte_len(dtype, &shape)?;
        let mut placed = Vec::with_capacity(pieces.len());
        for piece in pieces {
            placed.push((Lines::new(dtype, &shape, piece)?, 0));
        }
        placed.sort_unstable_by_key(|(lines, _)| lines.to.start);
        let mut furthest = 0;
        for (lines, end) in &mut placed {
            furthest = lines.to.end().max(furthest);
            *end = furthest;
        }
        Ok(Self { name: name.to_owned(), dtype, shape, pieces: placed })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the pieces that may have bytes of a range of the tensor.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = &Lines> {
        let end = self.pieces.partition_point(|(lines, _)| lines.to.start < range.end);
        let begin = self.pieces[..end].partition_point(|(_, furthest)| *furthest <= range.start);
        let lines = self.pieces[begin..end].iter().map(|(lines, _)| lines);
        lines.filter(move |lines| lines.to.end() > range.start)
    }

    /// Returns whether elements are neighbours in a file that are far apart in the tensor.
    pub(super) fn is_turned(&self) -> bool {
        self.pieces.iter().any(|(lines, _)| lines.is_near && lines.columns > 1)
    }

    /// Returns the numbers of the files that are read.
    pub(super) fn files(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().map(|(lines, _)| lines.file)
    }
}
