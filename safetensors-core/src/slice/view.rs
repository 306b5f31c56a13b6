//! [`SliceView`]: a slice of a tensor in memory.

use alloc::vec::Vec;

use super::{Index, IntoIndices, RankPart, Selection};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Sink, TensorBuf, TensorSource, TensorView};

/// A slice of a [`TensorView`]. It borrows the tensor's bytes. Only [`to_buf`](SliceView::to_buf)
/// copies them; saving the slice writes them directly, as a [`TensorSource`].
#[derive(Clone, Debug)]
pub struct SliceView<'a> {
    dtype: Dtype,
    selection: Selection,
    data: &'a [u8],
}

impl<'a> SliceView<'a> {
    /// The bytes of the slice as contiguous runs of the tensor's bytes, in order.
    pub fn runs(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        // The selection was made for a tensor of this many bytes, so every run lies inside them.
        self.selection.runs().map(|run| &self.data[run.start as usize..run.end as usize])
    }

    /// Copies the slice into a new tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidBool`] if the tensor is BOOL and a byte is neither 0 nor 1.
    pub fn to_buf(&self) -> Result<TensorBuf> {
        TensorBuf::filled_by(self.dtype, self.shape().to_vec(), |mut bytes| {
            for run in self.runs() {
                let (here, rest) = bytes.split_at_mut(run.len());
                here.copy_from_slice(run);
                bytes = rest;
            }
            Ok(())
        })
    }
}

impl TensorSource for SliceView<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.selection.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        // Short runs are gathered in a buffer, because calling the sink for every few bytes is
        // slow.
        const GATHERED: usize = 64 * 1024;
        let mut gathered = Vec::new();
        for run in self.runs() {
            if gathered.len() + run.len() > GATHERED && !gathered.is_empty() {
                sink(&gathered)?;
                gathered.clear();
            }
            if run.len() >= GATHERED {
                sink(run)?;
            } else {
                gathered.extend_from_slice(run);
            }
        }
        if gathered.is_empty() { Ok(()) } else { sink(&gathered) }
    }
}

impl<'a> TensorView<'a> {
    /// Takes a slice of the tensor without copying it. The indices are a tuple of positions and
    /// ranges, see [`Index`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooManyIndices`]; [`ErrorKind::IndexOutOfBounds`] for a position beyond the
    /// dimension, and for a range that ends before it begins (unlike NumPy, a range is not
    /// clipped); [`ErrorKind::ZeroStep`]; [`ErrorKind::SliceInsideByte`] if a run of selected
    /// elements of a sub-byte dtype does not begin and end on byte boundaries.
    pub fn slice(&self, indices: impl IntoIndices) -> Result<SliceView<'a>> {
        let selection = Selection::new(self.dtype(), self.shape(), &indices.into_indices())?;
        Ok(SliceView { dtype: self.dtype(), selection, data: self.data() })
    }

    /// Takes the positions from `start` up to but not including `start + len` of dimension `dim`,
    /// and the other dimensions whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchDim`], and the errors of [`slice`](TensorView::slice).
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<SliceView<'a>> {
        self.slice(narrow(self.shape(), dim, start, len)?)
    }

    /// Takes the part of the tensor that one rank holds.
    ///
    /// # Errors
    ///
    /// The errors of [`RankPart::range`] and of [`slice`](TensorView::slice).
    pub fn rank_part(&self, part: RankPart) -> Result<SliceView<'a>> {
        let range = part.range(self.shape())?;
        self.narrow(part.dim, range.start, range.len())
    }
}

/// The indices for `len` positions of dimension `dim` from `start` on. The other dimensions are
/// taken whole.
pub(crate) fn narrow(shape: &[usize], dim: usize, start: usize, len: usize) -> Result<Vec<Index>> {
    if dim >= shape.len() {
        return Err(Error::from(ErrorKind::NoSuchDim { dim, ndim: shape.len() }));
    }
    let mut indices = alloc::vec![Index::ALL; dim];
    indices.push((start..start.saturating_add(len)).into());
    Ok(indices)
}
