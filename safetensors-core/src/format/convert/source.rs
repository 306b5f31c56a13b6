//! [`Converted`]: a tensor that is converted while it is saved.

use alloc::borrow::Cow;

use super::block::{GROUP, STREAMED, bytes_of, elements_of};
use super::{Conversion, ConvertOptions};
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::tensor::{Sink, TensorSource, shape, swap_on_big_endian, write_in_pieces};
#[cfg(feature = "std")]
use crate::format::trace::Span;

// A multiple of `GROUP`, at most `STREAMED` bytes.
const ELEMENTS: usize = STREAMED / 8;

/// A tensor to be saved in another dtype. It is converted in pieces during the save, with buffers
/// of at most 1 MiB, so it can be larger than memory.
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
    /// Makes a source of the values as `to`, without reading any. Bytes of the same dtype are
    /// unchanged.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`](crate::ErrorKind::Quantization) for codes of a quantised weight,
    /// see [`Checkpoint::dequantized`](crate::Checkpoint::dequantized);
    /// [`ErrorKind::NoConversion`](crate::ErrorKind::NoConversion); [`shape::byte_len`]. A value
    /// that does not fit fails the save: [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit).
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
        let Conversion { from, to, .. } = self.conversion;
        let shape = self.source.shape();
        // The buffer is no larger than the tensor, because many tensors are small.
        let elements = shape::element_count(shape)?.min(ELEMENTS as u64) as usize;
        let elements = elements.next_multiple_of(GROUP);
        let words = bytes_of(to, elements).div_ceil(size_of::<u64>());
        let mut converted = alloc::vec![0_u64; words];
        let mut done = 0;
        let expected = shape::byte_len(from, shape)?;
        write_in_pieces(&self.source, expected, bytes_of(from, elements), &mut |piece| {
            let elements = elements_of(from, piece.len());
            let out = &mut bytemuck::cast_slice_mut(&mut converted)[..bytes_of(to, elements)];
            #[cfg(feature = "std")]
            let span = Span::convert(from.name(), to.name(), out.len());
            #[cfg(feature = "std")]
            let _convert = span.enter();
            let mut native = Cow::Borrowed(piece);
            if cfg!(target_endian = "big") {
                swap_on_big_endian(from, native.to_mut());
            }
            self.conversion.run(&native, out, done)?;
            swap_on_big_endian(to, out);
            done += elements as u64;
            sink(out)
        })
    }

    fn refuse_codes(&self) -> Result<()> {
        self.source.refuse_codes()
    }
}
