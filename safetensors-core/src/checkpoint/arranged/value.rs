//! [`Value`]: the elements of a tensor that is made of stored ones.

use crate::checkpoint::{Piece, Span};
use crate::file::load::LazyTensor;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::slice::{Index, Positions, TakenDim};
use crate::format::tensor::shape::element_count;

/// The elements of a tensor that is made of stored ones.
pub(super) struct Value<'a, S> {
    /// The first stored tensor.
    pub(super) first: LazyTensor<'a, S>,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Each element is in one of them. None is empty.
    pub(super) pieces: Vec<Piece>,
}

impl<'a, S> Value<'a, S> {
    /// All elements of a stored tensor.
    pub(super) fn new(tensor: LazyTensor<'a, S>) -> Self {
        let shape = tensor.shape().to_vec();
        let mut spans = Vec::with_capacity(shape.len());
        let mut stride = 1;
        for &count in shape.iter().rev() {
            spans.push(Span { places: Positions { start: 0, count, step: 1 }, stride });
            stride *= count as u64;
        }
        spans.reverse();
        let (file, offset) = (tensor.file_index(), tensor.file_offset());
        let whole = Piece { file, offset, first: 0, spans };
        let pieces = if tensor.byte_len() == 0 { Vec::new() } else { vec![whole] };
        Self { first: tensor, dtype: tensor.dtype(), shape, pieces }
    }

    pub(super) fn slice(mut self, dim: usize, index: Index) -> Result<Self> {
        let no_such_dim = ErrorKind::NoSuchDim { dim, ndim: self.shape.len() };
        let len = self.shape.get(dim).ok_or(no_such_dim);
        let taken = len.and_then(|&len| TakenDim::new(dim, len, index));
        let taken = taken.map_err(|kind| self.first.locate(kind.into()))?;
        self.shape[dim] = taken.positions.count;
        if !taken.keeps_dim {
            self.shape.remove(dim);
        }
        self.pieces = self.pieces.into_iter().filter_map(|it| it.take(dim, taken)).collect();
        Ok(self)
    }

    pub(super) fn transposed(mut self) -> Result<Self> {
        let ndim = self.shape.len();
        if ndim < 2 {
            let kind = ErrorKind::NoSuchDim { dim: 1, ndim };
            return Err(self.first.locate(kind.into()));
        }
        self.shape.swap(ndim - 2, ndim - 1);
        for piece in &mut self.pieces {
            piece.spans.swap(ndim - 2, ndim - 1);
        }
        Ok(self)
    }

    pub(super) fn stack(mut members: Vec<Self>) -> Result<Self> {
        for member in &mut members {
            member.shape.insert(0, 1);
            for piece in &mut member.pieces {
                piece.spans.insert(0, Span::one(0));
            }
        }
        Self::concat(0, members)
    }

    pub(super) fn concat(dim: usize, members: Vec<Self>) -> Result<Self> {
        Self::join(dim, members, |places, before, _| places.start += before)
    }

    pub(super) fn interleaved(dim: usize, members: Vec<Self>) -> Result<Self> {
        let count = members.len();
        if let [first, others @ ..] = &members[..]
            && let Some(other) = others.iter().find(|other| other.shape != first.shape)
        {
            return Err(other.differs(&first.shape));
        }
        Self::join(dim, members, |places, _, number| {
            places.start = places.start * count + number;
            places.step *= if places.count == 1 { 1 } else { count };
        })
    }

    /// Joins members in a dimension. `change` gets the places of a piece in the dimension, the
    /// length of the members before, and the number of the member.
    fn join(
        dim: usize,
        members: Vec<Self>,
        change: impl Fn(&mut Positions, usize, usize),
    ) -> Result<Self> {
        let mut members = members.into_iter();
        let mut joined = members.next().ok_or(ErrorKind::NoMembers)?;
        let ndim = joined.shape.len();
        if dim >= ndim {
            let kind = ErrorKind::NoSuchDim { dim, ndim };
            return Err(joined.first.locate(kind.into()));
        }
        // Pieces are changed once it is known that the dimension does not overflow.
        let mut parts = vec![(0, std::mem::take(&mut joined.pieces))];
        for member in members {
            if member.dtype != joined.dtype {
                let kind = ErrorKind::WrongDtype { expected: joined.dtype, found: member.dtype };
                return Err(member.first.locate(kind.into()));
            }
            let mut expected = joined.shape.clone();
            expected[dim] = *member.shape.get(dim).unwrap_or(&0);
            if expected != member.shape {
                return Err(member.differs(&expected));
            }
            let before = joined.shape[dim];
            let len = before.checked_add(member.shape[dim]);
            joined.shape[dim] = len.unwrap_or(usize::MAX);
            element_count(&joined.shape)
                .and_then(|_| len.ok_or(ErrorKind::ShapeOverflow { shape: joined.shape.clone() }))
                .map_err(|kind| member.first.locate(kind.into()))?;
            parts.push((before, member.pieces));
        }
        for (number, (before, pieces)) in parts.into_iter().enumerate() {
            for mut piece in pieces {
                change(&mut piece.spans[dim].places, before, number);
                joined.pieces.push(piece);
            }
        }
        Ok(joined)
    }

    fn differs(&self, expected: &[usize]) -> Error {
        let (expected, found) = (expected.to_vec(), self.shape.clone());
        self.first.locate(ErrorKind::WrongShape { expected, found }.into())
    }
}
