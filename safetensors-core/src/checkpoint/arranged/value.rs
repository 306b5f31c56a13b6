//! [`Value`]: the elements of a tensor that is made of stored ones.

use crate::checkpoint::{Join, Piece, Span};
use crate::file::load::LazyTensor;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::slice::{Index, TakenDim};
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
        let places = shape.iter().map(|&count| (0, count));
        let whole = Piece::contiguous(tensor.file_index(), tensor.file_offset(), places);
        let pieces = whole.into_iter().collect();
        Self { first: tensor, dtype: tensor.dtype(), shape, pieces }
    }

    pub(super) fn slice(mut self, dim: usize, index: Index) -> Result<Self> {
        let taken = TakenDim::new(&self.shape, dim, index);
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

    /// Joins members in a dimension.
    pub(super) fn join(join: Join, dim: usize, mut members: Vec<Self>) -> Result<Self> {
        if join == Join::Stacked {
            for member in &mut members {
                member.shape.insert(0, 1);
                member.pieces.iter_mut().for_each(|piece| piece.spans.insert(0, Span::one(0)));
            }
        }
        let count = members.len();
        let mut members = members.into_iter();
        let mut joined = members.next().ok_or(ErrorKind::NoMembers)?;
        let ndim = joined.shape.len();
        if dim >= ndim {
            let kind = ErrorKind::NoSuchDim { dim, ndim };
            return Err(joined.first.locate(kind.into()));
        }
        // Pieces are changed once it is known that the dimension does not overflow.
        let mut parts = vec![(0, std::mem::take(&mut joined.pieces))];
        for (number, member) in (1..).zip(members) {
            if member.dtype != joined.dtype {
                let kind = ErrorKind::WrongDtype { expected: joined.dtype, found: member.dtype };
                return Err(member.first.locate(kind.into()));
            }
            let before = joined.shape[dim];
            let mut expected = joined.shape.clone();
            expected[dim] = match join {
                Join::Interleaved => before / number,
                Join::OneAfterAnother | Join::Stacked => *member.shape.get(dim).unwrap_or(&0),
            };
            if expected != member.shape {
                let found = member.shape;
                return Err(member.first.locate(ErrorKind::WrongShape { expected, found }.into()));
            }
            let len = before.checked_add(member.shape[dim]);
            joined.shape[dim] = len.unwrap_or(usize::MAX);
            element_count(&joined.shape)
                .and_then(|_| len.ok_or(ErrorKind::ShapeOverflow { shape: joined.shape.clone() }))
                .map_err(|kind| member.first.locate(kind.into()))?;
            parts.push((before, member.pieces));
        }
        for (number, (before, pieces)) in parts.into_iter().enumerate() {
            for mut piece in pieces {
                let places = &mut piece.spans[dim].places;
                if join == Join::Interleaved {
                    places.start = places.start * count + number;
                    places.step *= if places.count == 1 { 1 } else { count };
                } else {
                    places.start += before;
                }
                joined.pieces.push(piece);
            }
        }
        Ok(joined)
    }
}
