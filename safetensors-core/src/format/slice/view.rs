//! [`SliceView`]: a slice of a tensor in memory.

use alloc::vec::Vec;

use super::{IntoIndices, Selection};
use crate::format::dtype::Dtype;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::format::tensor::{Sink, TensorBuf, TensorSource, TensorView};

/// A slice that borrows a [`TensorView`]. [`to_buf`](SliceView::to_buf) copies it; a save writes it
/// without a copy.
#[derive(Clone, Debug)]
pub struct SliceView<'a> {
    dtype: Dtype,
    selection: Selection,
    data: &'a [u8],
}

impl<'a> SliceView<'a> {
    /// Returns the slice as contiguous runs of bytes, in order.
    #[doc(hidden)]
    pub fn runs(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        // The selection was made for a tensor with this length, so every run is inside it.
        self.selection.runs().map(|run| &self.data[run.start as usize..run.end as usize])
    }

    /// Copies the slice into a new tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidBool`].
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
    /// Slices the tensor without a copy, by a tuple of positions and ranges (see
    /// [`Index`](super::Index)), or a part.
    ///
    /// ```
    /// use safetensors_core::TensorView;
    /// use safetensors_core::slice::{RankPart, TensorPart};
    ///
    /// let table = TensorView::from_slice(&[2, 4], &[0_u8, 1, 2, 3, 4, 5, 6, 7])?;
    /// let columns = [
    ///     table.slice((.., 2..4))?,
    ///     table.slice(RankPart::new(1, 1, 2))?,
    ///     table.slice(TensorPart::span(1, 2, 2))?,
    /// ];
    /// for columns in columns {
    ///     assert_eq!(columns.to_buf()?.into_vec::<u8>()?, [2, 3, 6, 7]);
    /// }
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooManyIndices`]; [`ErrorKind::IndexOutOfBounds`], also where NumPy clips a
    /// range; [`ErrorKind::ZeroStep`]; [`ErrorKind::SliceInsideByte`] if a run of sub-byte elements
    /// does not begin and end on byte boundaries; as for
    /// [`TensorPart::ranges`](super::TensorPart::ranges).
    pub fn slice(&self, indices: impl IntoIndices) -> Result<SliceView<'a>> {
        let indices = indices.into_indices(self.shape())?;
        let selection = Selection::new(self.dtype(), self.shape(), &indices)?;
        Ok(SliceView { dtype: self.dtype(), selection, data: self.data() })
    }
}
