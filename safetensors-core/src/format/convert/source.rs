//! [`Converted`]: a tensor that is converted while it is saved.

use alloc::vec::Vec;
use core::mem;

use super::block::{GROUP, STREAMED, bytes_of, elements_of};
use super::{Conversion, ConvertOptions};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::{Sink, TensorSource, shape, swap_on_big_endian};
#[cfg(feature = "std")]
use crate::format::trace::Span;

/// The number of elements that are converted at a time. It is a multiple of [`GROUP`]. Even of the
/// widest dtype it is no more bytes than [`STREAMED`].
const ELEMENTS: usize = STREAMED / 8;

/// A tensor to be saved in another dtype than its own. It is converted piece by piece while it is
/// written, with buffers of at most 1 MiB in all. So a tensor that is larger than memory can be
/// converted from file to file.
///
/// ```
/// use half::bf16;
/// use safetensors_core::convert::Converted;
/// use safetensors_core::{
///     ConvertOptions, Dtype, SafeTensors, SaveOptions, TensorView, serialize,
/// };
///
/// let weights = TensorView::from_slice(&[2], &[1.0_f32, -2.5])?;
/// let narrow = Converted::new(weights, Dtype::BF16, &ConvertOptions::new())?;
/// let file = serialize([("w", narrow)], &SaveOptions::new())?;
/// let saved = SafeTensors::parse(file)?;
/// assert_eq!(saved.view("w")?.as_slice::<bf16>()?, [1.0, -2.5].map(bf16::from_f32));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Converted<S> {
    source: S,
    conversion: Conversion,
}

impl<S: TensorSource> Converted<S> {
    /// Makes a source with the values of `source` in the dtype `to`. If `source` already has that
    /// dtype, its bytes are passed on unchanged. No value is read here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`] for codes of a quantised weight, see
    /// [`Checkpoint::dequantized`](crate::Checkpoint::dequantized). [`ErrorKind::NoConversion`] for
    /// a pair that is not possible, see [the table](crate::convert). For shapes see
    /// [`shape::byte_len`]. A value that does not fit is found only when it is written; the save
    /// then fails with [`ErrorKind::DoesNotFit`].
    pub fn new(source: S, to: Dtype, options: &ConvertOptions) -> Result<Self> {
        let conversion = Conversion::new(source.dtype(), to, options)?;
        shape::byte_len(source.dtype(), source.shape())?;
        shape::byte_len(to, source.shape())?;
        if source.dtype() != to {
            source.refuse_codes()?;
        }
        Ok(Self { source, conversion })
    }
}

impl<S: TensorSource> TensorSource for Converted<S> {
    fn dtype(&self) -> Dtype {
        self.conversion.to()
    }

    fn shape(&self) -> &[usize] {
        self.source.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        if self.conversion.from() == self.conversion.to() {
            return self.source.write_to(sink);
        }
        let mut pieces = Pieces::new(self.conversion, self.source.shape())?;
        self.source.write_to(&mut |bytes| pieces.take(bytes, sink))?;
        pieces.finish(sink)
    }

    fn refuse_codes(&self) -> Result<()> {
        self.source.refuse_codes()
    }
}

/// Gathers the bytes of a source into pieces of whole elements, and converts the pieces. A source
/// may cut its bytes anywhere.
struct Pieces {
    conversion: Conversion,
    /// The number of bytes that the source should give.
    expected: u64,
    /// The number of bytes that the source has given.
    taken: u64,
    /// The number of elements that have been converted.
    done: u64,
    /// Bytes of the source that are not converted yet. Their type is `u64` so that they are aligned
    /// for every dtype.
    gathered: Vec<u64>,
    /// The number of gathered bytes.
    len: usize,
    /// The number of bytes of a full piece.
    capacity: usize,
    /// The buffer for a converted piece.
    converted: Vec<u64>,
}

impl Pieces {
    fn new(conversion: Conversion, shape: &[usize]) -> Result<Self, ErrorKind> {
        let from = conversion.from();
        let to = conversion.to();
        // The buffers are no larger than the tensor, because many tensors are small.
        let elements = shape::element_count(shape)?.min(ELEMENTS as u64) as usize;
        let capacity = bytes_of(from, elements.next_multiple_of(GROUP));
        let words = |bytes: usize| alloc::vec![0; bytes.div_ceil(size_of::<u64>())];
        Ok(Self {
            conversion,
            expected: shape::byte_len(from, shape)?,
            taken: 0,
            done: 0,
            gathered: words(capacity),
            len: 0,
            capacity,
            converted: words(bytes_of(to, elements.next_multiple_of(GROUP))),
        })
    }

    fn take(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        self.taken += bytes.len() as u64;
        if self.taken > self.expected {
            return Err(self.wrong_length());
        }
        while !bytes.is_empty() {
            if self.len == 0 && bytes.len() >= self.capacity && cfg!(target_endian = "little") {
                // The source gives a full piece at once, as most do, so it is converted without a
                // copy.
                let (piece, rest) = bytes.split_at(self.capacity);
                self.convert(piece, sink)?;
                bytes = rest;
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.capacity - self.len));
            bytemuck::cast_slice_mut(&mut self.gathered)[self.len..][..now.len()]
                .copy_from_slice(now);
            self.len += now.len();
            bytes = rest;
            if self.len == self.capacity {
                self.convert_gathered(sink)?;
            }
        }
        Ok(())
    }

    fn finish(mut self, sink: &mut Sink<'_>) -> Result<()> {
        if self.taken != self.expected {
            return Err(self.wrong_length());
        }
        if self.len == 0 { Ok(()) } else { self.convert_gathered(sink) }
    }

    /// Converts the gathered bytes and passes them to `sink`. They are whole elements, because they
    /// are a full piece or the last one.
    fn convert_gathered(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let mut gathered = mem::take(&mut self.gathered);
        let piece = &mut bytemuck::cast_slice_mut(&mut gathered)[..self.len];
        swap_on_big_endian(self.conversion.from(), piece);
        let converted = self.convert(piece, sink);
        // The buffer is put back even after a failure, because a source may ignore the error and go
        // on.
        self.gathered = gathered;
        self.len = 0;
        converted
    }

    /// Converts whole elements in the machine's byte order, and passes them to `sink` as a file has
    /// them.
    fn convert(&mut self, piece: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        let from = self.conversion.from();
        let to = self.conversion.to();
        let elements = elements_of(from, piece.len());
        let converted =
            &mut bytemuck::cast_slice_mut(&mut self.converted)[..bytes_of(to, elements)];
        #[cfg(feature = "std")]
        let span = Span::convert(from.name(), to.name(), converted.len());
        #[cfg(feature = "std")]
        let _convert = span.enter();
        self.conversion.run(piece, converted, self.done)?;
        swap_on_big_endian(to, converted);
        self.done += elements as u64;
        sink(converted)
    }

    fn wrong_length(&self) -> Error {
        ErrorKind::SourceLength { expected: self.expected, found: self.taken }.into()
    }
}
