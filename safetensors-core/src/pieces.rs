//! [`Pieces`]: the elements of a tensor of any size, some at a time.

use std::iter::FusedIterator;

use crate::{ErrorKind, LazyTensor, ReadAt, Result, TensorBuf};

/// The elements of a piece: at most 2 MiB of them. A multiple of the elements that share bytes in any packed dtype.
const ELEMENTS: u64 = 1 << 18;

/// What [`LazyTensor::pieces`] gives.
#[derive(Debug)]
pub struct Pieces<'a, S> {
    tensor: LazyTensor<'a, S>,
    /// The first element of the next piece.
    next: u64,
}

impl<'a, S: ReadAt> LazyTensor<'a, S> {
    /// Reads the tensor in pieces of bounded size, in order, so that one larger than memory can be looked at.
    ///
    /// A piece is a buffer of one dimension, with 2¹⁸ elements, the last one with fewer. Tensors of one shape come in the same
    /// pieces, whatever their dtypes. A tensor without elements has no pieces.
    ///
    /// ```
    /// use safetensors_core::{Limits, SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let file = serialize([("w", TensorView::from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?)], &SaveOptions::new())?;
    /// let file = SafeTensors::read_header(file, &Limits::default())?;
    /// let mut sum = 0.0;
    /// for piece in file.tensor("w")?.pieces() {
    ///     sum += piece?.as_slice::<f32>()?.iter().sum::<f32>();
    /// }
    /// assert_eq!(sum, 10.0);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`read`](LazyTensor::read), naming the tensor and its file; nothing comes after one. Whether the file has
    /// changed since it was opened is checked before the last piece is given.
    pub fn pieces(&self) -> Pieces<'a, S> {
        Pieces { tensor: *self, next: 0 }
    }
}

impl<S: ReadAt> Pieces<'_, S> {
    fn read(&self, elements: u64) -> Result<TensorBuf> {
        let (tensor, bits) = (self.tensor, u64::from(self.tensor.dtype().bits()));
        let is_last = self.next + elements == tensor.element_count();
        let piece = TensorBuf::read_with(tensor.dtype(), vec![elements as usize], |bytes| {
            let offset = tensor.file_offset() + self.next / 8 * bits;
            tensor.source().read_exact_at(bytes, offset).map_err(ErrorKind::Io)?;
            if is_last { tensor.check_unchanged() } else { Ok(()) }
        });
        piece.map_err(|error| match error.kind() {
            // Counted from the beginning of the piece so far.
            ErrorKind::InvalidBool { index, found } => {
                tensor.locate(ErrorKind::InvalidBool { index: self.next + index, found: *found }.into())
            }
            _ => tensor.locate(error),
        })
    }
}

impl<S: ReadAt> Iterator for Pieces<'_, S> {
    type Item = Result<TensorBuf>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.tensor.element_count().saturating_sub(self.next);
        let elements = left.min(ELEMENTS);
        if elements == 0 {
            return None;
        }
        let piece = self.read(elements);
        self.next = if piece.is_ok() { self.next + elements } else { u64::MAX };
        Some(piece)
    }
}

impl<S: ReadAt> FusedIterator for Pieces<'_, S> {}
