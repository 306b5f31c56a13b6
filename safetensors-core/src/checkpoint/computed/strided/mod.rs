//! [`Strided`]: a tensor that is made of elements of stored tensors, as bytes.
//!
//! `piece.rs` has the elements, `lines.rs` their bytes, and `read.rs` reads them.

mod lines;
pub(crate) mod piece;
pub(crate) mod read;

use std::io;
use std::ops::Range;

use crate::file::io::ReadRange;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::slice::Positions;
use crate::format::tensor::shape::byte_len;
use lines::{Lines, Run};
use piece::{Piece, Span};
use read::Part;

/// Reads bytes of a file from an offset on.
type ReadBytes<'a> = dyn Fn(&mut [u8], u64) -> io::Result<()> + 'a;

/// A tensor that is made of pieces of stored tensors. Each of its elements is in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Strided {
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

    /// Makes a tensor of the bytes of elements: each has `width` bytes, and `strides` has the
    /// distances between neighbours in a dimension. The first one is the element `offset` of a
    /// file.
    #[doc(hidden)]
    pub fn of_elements(
        width: usize,
        shape: &[usize],
        strides: &[u64],
        offset: u64,
    ) -> Result<Self> {
        let all = |count, stride| Span { places: Positions { start: 0, count, step: 1 }, stride };
        let elements = shape.iter().zip(strides);
        let elements = elements.map(|(&count, &stride)| all(count, stride * width as u64));
        let spans = elements.chain([all(width, 1)]).collect();
        let piece = Piece { file: 0, offset: offset * width as u64, first: 0, spans };
        Self::new("", Dtype::U8, [shape, &[width]].concat(), &[piece])
    }

    /// Returns the offset of the bytes in their file, if they are contiguous.
    #[doc(hidden)]
    pub fn contiguous(&self) -> Option<u64> {
        match &self.pieces[..] {
            [(lines, _)] => lines.from.contiguous(),
            _ => None,
        }
    }

    /// Reads bytes of a tensor of one file, from this byte of the tensor on.
    #[doc(hidden)]
    pub fn read(&self, file: &ReadBytes<'_>, start: u64, bytes: &mut [u8]) -> io::Result<()> {
        let files = |_, ranges: &mut [ReadRange<'_>]| {
            ranges.iter_mut().try_for_each(|range| file(range.bytes, range.offset))
        };
        let parts = &mut [Part { tensor: self, start, bytes }];
        read::read(&files, parts).map_err(|failed| failed.error)
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
