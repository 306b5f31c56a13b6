//! [`Piece`]: a piece of a tensor that may be larger than memory.

use std::ops::Range;

use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::TensorBuf;

// At most 2 MiB. A multiple of 8, so that any packed dtype has whole bytes.
const ELEMENTS: u64 = 1 << 18;

/// At most 2¹⁸ consecutive elements of a tensor, read on request. Threads can share the pieces of a
/// tensor.
#[derive(Debug)]
pub struct Piece<'a, S> {
    tensor: LazyTensor<'a, S>,
    start: u64,
    elements: u64,
}

impl<S> Clone for Piece<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Piece<'_, S> {}

impl<'a, S> LazyTensor<'a, S> {
    /// Cuts the tensor, which may be larger than memory, into pieces, in order, without reading.
    ///
    /// Tensors of the same shape have the same pieces in all dtypes, and an empty tensor has none.
    ///
    /// ```
    /// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let file = serialize(
    ///     [("w", TensorView::from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?)],
    ///     &SaveOptions::new(),
    /// )?;
    /// let file = SafeTensors::from_source(file)?;
    /// let mut sum = 0.0;
    /// for piece in file.tensor("w")?.pieces() {
    ///     sum += piece.read()?.as_slice::<f32>()?.iter().sum::<f32>();
    /// }
    /// assert_eq!(sum, 10.0);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'a, S>> + Clone + use<'a, S> {
        self.pieces_of(0..self.element_count())
    }

    /// The elements, in C order, must fill their bytes.
    #[doc(hidden)]
    pub fn pieces_of(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = Piece<'a, S>> + Clone + use<'a, S> {
        let tensor = *self;
        let mut next = range.start;
        std::iter::from_fn(move || {
            let start = next;
            let elements = range.end.saturating_sub(start).min(ELEMENTS);
            next = start + elements;
            (elements > 0).then_some(Piece { tensor, start, elements })
        })
    }
}

impl<'a, S> Piece<'a, S> {
    /// Returns the tensor of this piece.
    pub fn tensor(&self) -> LazyTensor<'a, S> {
        self.tensor
    }

    /// Returns the index of the first element in the tensor, in C order.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the number of elements; at least 1.
    pub fn element_count(&self) -> u64 {
        self.elements
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> u64 {
        self.bytes_of(self.elements)
    }

    fn bytes_of(&self, elements: u64) -> u64 {
        // A sub-byte dtype needs no rounding: an entire tensor fills its bytes, and so does each
        // piece.
        let bits = u64::from(self.tensor.dtype().bits());
        elements / 8 * bits + elements % 8 * bits / 8
    }
}

impl<S: ReadAt> Piece<'_, S> {
    /// Reads the elements into a buffer with one dimension.
    ///
    /// # Errors
    ///
    /// As for [`LazyTensor::read`]. Elements count from the start of the tensor.
    pub fn read(&self) -> Result<TensorBuf> {
        let buf =
            TensorBuf::filled_by(self.tensor.dtype(), vec![self.elements as usize], |bytes| {
                self.fill(bytes)
            });
        buf.map_err(|error| self.tensor.locate(error.at_element(|index| self.start + index)))
    }

    /// Reads the file's bytes, little-endian and unchecked, into memory that pieces can share:
    /// fresh memory can cost more than reading.
    ///
    /// ```
    /// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let values = vec![1_u8; 300_000];
    /// let view = TensorView::from_slice(&[300_000], &values)?;
    /// let file = SafeTensors::from_source(serialize([("w", view)], &SaveOptions::new())?)?;
    /// let (mut buffer, mut sum) = (Vec::new(), 0);
    /// for piece in file.tensor("w")?.pieces() {
    ///     buffer.resize(piece.byte_len() as usize, 0);
    ///     piece.read_bytes_into(&mut buffer)?;
    ///     sum += buffer.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    ///     assert!(piece.read_bytes_into(&mut buffer[1..]).is_err());
    /// }
    /// assert_eq!(sum, 300_000);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataLength`] if the length is not [`byte_len`](Piece::byte_len);
    /// [`ErrorKind::Io`], also for a changed file. Then the bytes are unspecified.
    pub fn read_bytes_into(&self, bytes: &mut [u8]) -> Result<()> {
        let expected = self.byte_len();
        let found = bytes.len() as u64;
        let filled = if expected == found {
            self.fill(bytes)
        } else {
            let dtype = self.tensor.dtype();
            let shape = [self.elements as usize].into();
            Err(ErrorKind::DataLength { dtype, shape, expected, found }.into())
        };
        filled.map_err(|error| self.tensor.locate(error))
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let offset = self.tensor.file_offset() + self.bytes_of(self.start);
        self.tensor.source().read_exact_at(bytes, offset)?;
        self.tensor.check_unchanged()
    }
}
