//! [`PlannedTensor`]: a tensor of a rewrite, and its source.

use std::borrow::Cow;
use std::sync::Arc;

use super::origin::Origin;
use crate::checkpoint::Assembled;
use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::convert::{ConvertOptions, Converted};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, Result};
use crate::format::tensor::{Sink, Storage, TensorSource, shape};
use crate::model::quantized::{Fused, Quantization, QuantizationError, QuantizedPart};

/// A tensor of a [`Rewrite`](super::Rewrite), as it will be saved.
#[derive(Debug)]
pub struct PlannedTensor<'a, S = Assembled> {
    pub(super) origin: Origin<'a, S>,
    written: Written<'a, S>,
    byte_len: u64,
    source_name: Cow<'a, str>,
    /// Equal for all names of a tensor.
    pub(super) tie: u64,
    /// Neither the tensor's name in its file, nor a replacement of the tensor.
    pub(super) alias: bool,
}

#[derive(Debug)]
enum Written<'a, S> {
    AsIs,
    Cast(Converted<Origin<'a, S>>),
    Quantized(QuantizedPart<Origin<'a, S>>),
}

impl<'a, S> PlannedTensor<'a, S> {
    pub(super) fn from_lazy(name: &'a str, tensor: LazyTensor<'a, S>, tie: u64) -> Self {
        let alias = name != tensor.name();
        let byte_len = tensor.byte_len();
        Self::new(Origin::Lazy(tensor), byte_len, name.into(), (tie, alias))
    }

    fn new(
        origin: Origin<'a, S>,
        byte_len: u64,
        source_name: Cow<'a, str>,
        (tie, alias): (u64, bool),
    ) -> Self {
        Self { origin, written: Written::AsIs, byte_len, source_name, tie, alias }
    }

    /// Fails if no tensor can have its dtype and shape.
    pub(super) fn added(
        name: &str,
        tensor: impl TensorSource + Send + 'a,
        tie: u64,
    ) -> Result<Self> {
        let byte_len = shape::byte_len(tensor.dtype(), tensor.shape());
        let byte_len = byte_len.map_err(|kind| Error::from(kind).in_tensor(name))?;
        let origin = Origin::Added(Arc::new(tensor), name.into());
        Ok(Self::new(origin, byte_len, name.to_owned().into(), (tie, false)))
    }

    /// Returns the tensor in its file; `None` if it was [added](super::Rewrite::add).
    pub fn tensor(&self) -> Option<&LazyTensor<'a, S>> {
        match &self.origin {
            Origin::Lazy(tensor) => Some(tensor),
            Origin::Added(..) => None,
        }
    }

    pub(super) fn unchanged(&self) -> Option<&LazyTensor<'a, S>> {
        self.tensor().filter(|_| matches!(self.written, Written::AsIs))
    }

    /// Returns the name in the checkpoint, perhaps an [alias](crate::Checkpoint::aliases), or the
    /// name of an added tensor.
    pub fn source_name(&self) -> &str {
        &self.source_name
    }

    /// Returns `true` if this is recorded as an [alias](crate::Checkpoint::aliases), and not a
    /// separate tensor.
    pub fn is_alias(&self) -> bool {
        self.alias
    }

    /// Returns the number of bytes that will be saved.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }

    /// Returns `true` if this tensor stores a [quantised](super::Rewrite::quantize) weight.
    pub fn is_quantized(&self) -> bool {
        matches!(self.written, Written::Quantized(_))
    }

    /// Returns the error of a [quantised](super::Rewrite::quantize) weight, once these codes were
    /// saved.
    #[doc(hidden)]
    pub fn quantization_error(&self) -> Option<QuantizationError> {
        match &self.written {
            Written::Quantized(part) => part.error(),
            Written::AsIs | Written::Cast(_) => None,
        }
    }

    pub(super) fn locate(&self, error: Error) -> Error {
        self.origin.locate(error)
    }
}

impl<'a, S: ReadAt> PlannedTensor<'a, S> {
    /// Returns the shape in the source; for codes and scales of a
    /// [quantised](super::Rewrite::quantize) weight, the weight's shape.
    #[doc(hidden)]
    pub fn source_shape(&self) -> &[usize] {
        self.origin.shape()
    }

    /// Returns the dtype in the source, before a conversion.
    #[doc(hidden)]
    pub fn source_dtype(&self) -> Dtype {
        self.origin.dtype()
    }

    /// Returns the number of bytes in the source; for codes and scales of a quantised weight, the
    /// weight's bytes.
    #[doc(hidden)]
    pub fn source_len(&self) -> u64 {
        // No tensor is planned with an unknown length.
        shape::byte_len(self.source_dtype(), self.source_shape()).unwrap_or_default()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        match &self.written {
            Written::AsIs => self.source_dtype(),
            Written::Cast(converted) => converted.dtype(),
            Written::Quantized(part) => part.dtype(),
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match &self.written {
            Written::AsIs | Written::Cast(_) => self.origin.shape(),
            Written::Quantized(part) => part.shape(),
        }
    }

    /// Returns `true` for floats other than codes and scales of this rewrite.
    pub(super) fn is_plain_float(&self) -> bool {
        self.dtype().is_float() && !self.is_quantized()
    }

    pub(super) fn is_of_codes(&self) -> bool {
        matches!(&self.written, Written::Quantized(part) if !part.is_codes())
    }

    pub(super) fn cast(&mut self, to: Dtype, options: &ConvertOptions) -> Result<()> {
        let cast = Converted::new(self.origin.clone(), to, options)
            .map_err(|error| self.origin.locate(error))?;
        self.set(Written::Cast(cast))
    }

    pub(super) fn quantized(
        &self,
        name: &str,
        how: Quantization,
        options: &ConvertOptions,
        fused: Option<Arc<Fused<Origin<'a, S>>>>,
    ) -> Result<Vec<(String, Self)>> {
        let parts = how.quantize(name, self.origin.clone(), options, fused);
        let parts = parts.map_err(|error| self.origin.locate(error))?;
        let planned = parts.into_iter().map(|(name, part)| {
            let name_in_source = self.source_name.clone();
            let ties = (self.tie, self.alias);
            let mut planned = Self::new(self.origin.clone(), 0, name_in_source, ties);
            planned.set(Written::Quantized(part))?;
            Ok((name, planned))
        });
        planned.collect()
    }

    fn set(&mut self, written: Written<'a, S>) -> Result<()> {
        self.written = written;
        self.byte_len = shape::byte_len(self.dtype(), self.shape())
            .map_err(|kind| self.origin.locate(kind.into()))?;
        Ok(())
    }
}

impl<S: ReadAt> TensorSource for PlannedTensor<'_, S> {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let written = match &self.written {
            Written::AsIs => return self.origin.write_to(sink),
            Written::Cast(converted) => converted.write_to(sink),
            Written::Quantized(part) => part.write_to(sink),
        };
        written.map_err(|error| self.origin.locate(error))
    }

    fn refuse_codes(&self) -> Result<()> {
        if self.is_quantized() { Ok(()) } else { self.origin.refuse_codes() }
    }

    /// Names of a tensor that are saved in one dtype share it.
    fn storage(&self) -> Option<Storage> {
        // The tie number serves as an address: `Tied` only compares them. An empty tensor gets one
        // byte, so that it can be tied. See `Tied::with_empty`.
        Some(Storage::whole(self.tie, self.byte_len.max(1)))
    }
}
