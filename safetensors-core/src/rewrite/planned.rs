//! [`PlannedTensor`]: a tensor of a rewrite, and its source.

use std::borrow::Cow;
use std::sync::Arc;

use super::origin::{Origin, OriginTensor};
use crate::convert::{ConvertOptions, Converted};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::{FileSource, ReadAt};
use crate::load::LazyTensor;
use crate::ranks::GatheredTensor;
use crate::tensor::{ScaleSource, Sink, Storage, TensorSource, shape};

/// A tensor of a [`Rewrite`](super::Rewrite), as it will be saved.
#[derive(Debug)]
pub struct PlannedTensor<'a, S = FileSource> {
    pub(super) origin: Origin<'a, S>,
    cast: Option<Converted<Origin<'a, S>>>,
    byte_len: u64,
    source_name: Cow<'a, str>,
    /// The tie number: the same for all names of one tensor.
    pub(super) tie: u64,
    /// Whether this is an alias: not the tensor's name in its file, and not put in the tensor's
    /// place.
    pub(super) alias: bool,
}

impl<'a, S> PlannedTensor<'a, S> {
    /// Plans a tensor of a checkpoint, under its own name or an alias.
    pub(super) fn of(name: &'a str, tensor: LazyTensor<'a, S>, tie: u64) -> Self {
        let alias = name != tensor.name();
        let byte_len = tensor.byte_len();
        Self {
            origin: Origin::new(OriginTensor::Lazy(tensor)),
            cast: None,
            byte_len,
            source_name: name.into(),
            tie,
            alias,
        }
    }

    /// Plans an added tensor. Fails if no tensor can have its dtype and shape.
    pub(super) fn added(
        name: &str,
        tensor: impl TensorSource + Send + 'a,
        tie: u64,
    ) -> Result<Self> {
        let byte_len = shape::byte_len(tensor.dtype(), tensor.shape());
        let byte_len = byte_len.map_err(|kind| Error::from(kind).in_tensor(name))?;
        let origin = Origin::new(OriginTensor::Added(Arc::new(tensor), name.into()));
        Ok(Self {
            origin,
            cast: None,
            byte_len,
            source_name: name.to_owned().into(),
            tie,
            alias: false,
        })
    }

    /// Plans a whole tensor whose parts lie in several files, under its own name or an alias.
    pub(super) fn gathered(
        name: &str,
        tensor: Arc<GatheredTensor<'a, S>>,
        tie: u64,
        alias: bool,
    ) -> Result<Self>
    where
        S: ReadAt,
    {
        let byte_len = shape::byte_len(tensor.dtype(), tensor.shape());
        let byte_len = byte_len.map_err(|kind| Error::from(kind).in_tensor(name))?;
        let source_name = name.to_owned().into();
        let origin = Origin::new(OriginTensor::Gathered(tensor));
        Ok(Self { origin, cast: None, byte_len, source_name, tie, alias })
    }

    /// The tensor in its file; `None` if it was [added](super::Rewrite::add), or
    /// [gathered](super::Rewrite::add_gathered) from several files.
    pub fn tensor(&self) -> Option<&LazyTensor<'a, S>> {
        match &self.origin.tensor {
            OriginTensor::Lazy(tensor) => Some(tensor),
            OriginTensor::Gathered(_) | OriginTensor::Added(..) => None,
        }
    }

    /// The tensor in its file, if it is written as it is there.
    pub(super) fn unchanged(&self) -> Option<&LazyTensor<'a, S>> {
        self.tensor().filter(|_| self.cast.is_none())
    }

    /// The original name: that in the checkpoint, which may be an
    /// [alias](crate::Checkpoint::aliases), or the one under which the tensor was added.
    pub fn source_name(&self) -> &str {
        &self.source_name
    }

    /// Whether this is an [alias](crate::Checkpoint::aliases): a name that the metadata records,
    /// other than the tensor's name in its file. If the tensor was left out and this name was
    /// [cast](super::Rewrite::cast) in its place, this is no longer an alias.
    pub fn is_alias(&self) -> bool {
        self.alias
    }

    /// The number of bytes that will be saved.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }

    /// The dimensions, outermost first; empty for a scalar.
    pub(crate) fn shape(&self) -> &[usize] {
        self.origin.tensor.shape()
    }

    /// The dtype in the source, before a conversion.
    pub fn source_dtype(&self) -> Dtype {
        self.origin.tensor.dtype()
    }
}

impl<S: ReadAt> PlannedTensor<'_, S> {
    /// The dtype that will be saved.
    pub(crate) fn dtype(&self) -> Dtype {
        self.cast.as_ref().map_or(self.source_dtype(), Converted::dtype)
    }

    /// Whether the elements are multiplied by their scales.
    pub(super) fn is_scaled(&self) -> bool {
        self.cast.as_ref().is_some_and(Converted::is_scaled)
    }

    /// Sets the conversion, from the original dtype.
    pub(super) fn cast(&mut self, to: Dtype, options: &ConvertOptions) -> Result<()> {
        let cast = Converted::new(self.origin.clone(), to, options)
            .map_err(|error| self.origin.tensor.locate(error))?;
        self.byte_len = shape::byte_len(to, self.shape())
            .map_err(|kind| self.origin.tensor.locate(kind.into()))?;
        self.cast = Some(cast);
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
        match &self.cast {
            Some(converted) => {
                converted.write_to(sink).map_err(|error| self.origin.tensor.locate(error))
            }
            None => self.origin.write_to(sink),
        }
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        match &self.cast {
            Some(converted) => converted.scales(),
            None => self.origin.scales(),
        }
    }

    /// The same storage for all names of one tensor that are saved in one dtype.
    fn storage(&self) -> Option<Storage> {
        // The tie number stands for an address: `Tied` only compares them.
        // An empty tensor gets one byte, so that it can be tied. See `Tied::with_empty`.
        Some(Storage::whole(self.tie, self.byte_len.max(1)))
    }
}
