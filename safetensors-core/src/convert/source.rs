//! [`Converted`]: a tensor that is converted while it is saved.

use alloc::vec::Vec;
use core::mem;

use super::block::{GROUP, STREAMED, bytes_of, elements_of};
use super::scaled::ReadConversion;
use super::scales::{FoundScales, Scales, may_have_scales};
use super::{Conversion, ConvertOptions, ScaleLayout};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::shape::Positions;
use crate::tensor::{ScaleSource, Sink, TensorSource, shape, swap_on_big_endian};
#[cfg(feature = "std")]
use crate::trace::Span;

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
    options: ConvertOptions,
    /// Which scales belong to which elements, if the elements are multiplied by scales.
    layout: Option<ScaleLayout>,
}

impl<S: TensorSource> Converted<S> {
    /// Makes a source of the values of `source` in the dtype `to`. If `source` has that dtype
    /// already, its bytes are passed on unchanged. No value is read here. If the options ask for
    /// it, a quantised weight of a checkpoint is multiplied by its scales. They are in memory, as
    /// F32, while the weight is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NeedsScales`], [`ErrorKind::AmbiguousScales`] and [`ErrorKind::WrongScales`]
    /// for a weight with scales. [`ErrorKind::NoConversion`] for a pair that is not possible, see [the
    /// table](crate::convert), and the errors of [`shape::byte_len`]. A value that does not fit is
    /// found only when it is written; the save then fails with [`ErrorKind::DoesNotFit`].
    pub fn new(source: S, to: Dtype, options: &ConvertOptions) -> Result<Self> {
        let conversion = Conversion::new(source.dtype(), to, options)?;
        shape::byte_len(source.dtype(), source.shape())?;
        shape::byte_len(to, source.shape())?;
        let layout = match scales_of(&source, to) {
            None => None,
            Some(scales) => options.scale_layout(&scales.weight, to, &scales.found())?,
        };
        if layout.is_some() {
            Conversion::new(Dtype::F32, to, options)?;
        }
        Ok(Self { source, conversion, options: *options, layout })
    }

    /// Whether elements are multiplied by scales.
    #[cfg(feature = "std")]
    pub(crate) fn is_scaled(&self) -> bool {
        self.layout.is_some()
    }

    /// Reads the scales, if the elements are multiplied by scales.
    fn read_scales(&self) -> Result<Option<Scales>> {
        let source = self.layout.as_ref().zip(self.source.scales());
        let Some((layout, ScaleSource { name, tensor, weight, positions, rows, .. })) = source
        else {
            return Ok(None);
        };
        let positions = positions.unwrap_or_else(|| Positions::whole(&weight));
        let read = || {
            let floats = Converted::new(tensor, Dtype::F32, &ConvertOptions::new())?;
            let mut bytes = Vec::new();
            floats.write_to(&mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            let (values, _) = bytes.as_chunks();
            let values = values.iter().map(|&value| f32::from_le_bytes(value)).collect();
            let expected = shape::byte_len(Dtype::F32, floats.shape())?;
            let wrong = ErrorKind::SourceLength { expected, found: bytes.len() as u64 };
            let scales = Scales::of_weight(layout, &weight, &positions, values).ok_or(wrong)?;
            Ok(match &rows {
                Some(rows) => scales.of_rows(rows, &positions),
                None => scales,
            })
        };
        read().map(Some).map_err(|error: Error| error.in_tensor(&name))
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
        let scales = self.read_scales()?;
        let conversion = ReadConversion::new(self.conversion, scales.as_ref(), &self.options)?;
        let mut pieces = Pieces::new(conversion, self.source.shape())?;
        self.source.write_to(&mut |bytes| pieces.take(bytes, sink))?;
        pieces.finish(sink)
    }

    /// The scales of the source, unless its elements were converted.
    fn scales(&self) -> Option<ScaleSource<'_>> {
        if self.conversion.from() == self.conversion.to() { self.source.scales() } else { None }
    }
}

/// The scales of a source that becomes another dtype.
fn scales_of(source: &impl TensorSource, to: Dtype) -> Option<ScaleSource<'_>> {
    let dtype = source.dtype();
    if may_have_scales(dtype) && dtype != to { source.scales() } else { None }
}

impl ScaleSource<'_> {
    fn found(&self) -> FoundScales<'_> {
        FoundScales {
            name: &self.name,
            dtype: self.tensor.dtype(),
            shape: self.tensor.shape(),
            other: self.other.as_deref(),
        }
    }
}

/// Gathers the bytes of a source into pieces of whole elements, and converts the pieces. A source
/// may cut its bytes anywhere.
struct Pieces<'s> {
    conversion: ReadConversion<'s>,
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

impl<'s> Pieces<'s> {
    fn new(conversion: ReadConversion<'s>, shape: &[usize]) -> Result<Self, ErrorKind> {
        let (from, to) = (conversion.from(), conversion.to());
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
        let (from, to) = (self.conversion.from(), self.conversion.to());
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
