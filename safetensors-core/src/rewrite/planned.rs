//! [`PlannedTensor`]: a tensor of a rewrite, and its source.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::{fmt, iter, ptr};

use crate::convert::{ConvertOptions, Converted, find_scales, may_have_scales};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::{FileSource, ReadAt};
use crate::load::LazyTensor;
use crate::ranks::GatheredTensor;
use crate::tensor::{ScaleSource, Sink, Storage, TensorSource, shape};

/// A tensor of a [`Rewrite`](super::Rewrite), as it will be saved.
#[derive(Debug)]
pub struct PlannedTensor<'a, S = FileSource> {
    origin: Origin<'a, S>,
    cast: Option<Converted<Origin<'a, S>>>,
    byte_len: u64,
    source_name: Cow<'a, str>,
    /// The tie number: the same for all names of one tensor.
    pub(super) tie: u64,
    /// Whether this is an alias: not the tensor's name in its file, and not put in the tensor's
    /// place.
    pub(super) alias: bool,
}

/// The source of a tensor.
enum Origin<'a, S> {
    /// A tensor of a checkpoint.
    Lazy(LazyTensor<'a, S>),
    /// A tensor whose parts lie in several files of a checkpoint.
    Gathered(Arc<GatheredTensor<'a, S>>),
    /// An added tensor, and its scales if it is a quantised weight whose scales were added, too.
    Added(Arc<Added<'a>>, Option<Arc<Added<'a>>>),
}

/// An added tensor, with the name under which it was added.
pub(super) struct Added<'a> {
    tensor: Box<dyn TensorSource + Send + 'a>,
    pub(super) name: String,
}

/// Tells the tensors of all sources apart: the address of the source and the name in it.
pub(super) type Key<'p> = (usize, &'p str);

impl<'a, S> PlannedTensor<'a, S> {
    /// Plans a tensor of a checkpoint, under its own name or an alias.
    pub(super) fn of(name: &'a str, tensor: LazyTensor<'a, S>, tie: u64) -> Self {
        let alias = name != tensor.name();
        let byte_len = tensor.byte_len();
        Self {
            origin: Origin::Lazy(tensor),
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
        let added = Added { tensor: Box::new(tensor), name: name.to_owned() };
        let origin = Origin::Added(Arc::new(added), None);
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
        Ok(Self { origin: Origin::Gathered(tensor), cast: None, byte_len, source_name, tie, alias })
    }

    /// The tensor in its file; `None` if it was [added](super::Rewrite::add), or
    /// [gathered](super::Rewrite::gather) from several files.
    pub fn tensor(&self) -> Option<&LazyTensor<'a, S>> {
        match &self.origin {
            Origin::Lazy(tensor) => Some(tensor),
            Origin::Gathered(_) | Origin::Added(..) => None,
        }
    }

    /// The tensor, if it was added.
    pub(super) fn as_added(&self) -> Option<&Arc<Added<'a>>> {
        match &self.origin {
            Origin::Added(added, _) => Some(added),
            Origin::Lazy(_) | Origin::Gathered(_) => None,
        }
    }

    /// Whether the tensor was added, and may be a quantised weight with scales.
    pub(super) fn may_have_added_scales(&self) -> bool {
        self.as_added().is_some_and(|added| may_have_scales(added.tensor.dtype()))
    }

    /// Finds the scales of an added weight among the added tensors.
    pub(super) fn find_added_scales(&mut self, all: &HashMap<String, Arc<Added<'a>>>) {
        if !self.may_have_added_scales() {
            return;
        }
        if let Origin::Added(weight, scales) = &mut self.origin {
            let find = |name: &str| all.get_key_value(name).map(|(name, _)| name);
            let found = find_scales(iter::once(weight.name.as_str()), find);
            *scales = found.and_then(|(name, _)| all.get(name).cloned());
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
    pub fn shape(&self) -> &[usize] {
        match &self.origin {
            Origin::Lazy(tensor) => tensor.shape(),
            Origin::Gathered(tensor) => tensor.shape(),
            Origin::Added(added, _) => added.tensor.shape(),
        }
    }

    /// The dtype in the source, before a conversion.
    pub fn source_dtype(&self) -> Dtype {
        match &self.origin {
            Origin::Lazy(tensor) => tensor.dtype(),
            Origin::Gathered(tensor) => tensor.dtype(),
            Origin::Added(added, _) => added.tensor.dtype(),
        }
    }
}

impl<S: ReadAt> PlannedTensor<'_, S> {
    /// The dtype that will be saved.
    pub fn dtype(&self) -> Dtype {
        self.cast.as_ref().map_or(self.source_dtype(), Converted::dtype)
    }

    /// The tensor itself, told apart from those of other sources.
    pub(super) fn key(&self) -> Key<'_> {
        match &self.origin {
            Origin::Lazy(tensor) => (address(tensor), tensor.name()),
            Origin::Gathered(tensor) => key_of_gathered(tensor),
            Origin::Added(added, _) => (0, &added.name),
        }
    }

    /// The scales of the tensor, if it is a quantised weight.
    pub(super) fn key_of_scales(&self) -> Option<Key<'_>> {
        match &self.origin {
            Origin::Lazy(tensor) => tensor.scales().map(|scales| (address(&scales), scales.name())),
            Origin::Gathered(tensor) => tensor.scales().map(key_of_gathered),
            Origin::Added(_, scales) => scales.as_ref().map(|scales| (0, scales.name.as_str())),
        }
    }

    /// Whether the elements are multiplied by their scales.
    pub(super) fn is_scaled(&self) -> bool {
        self.cast.as_ref().is_some_and(Converted::is_scaled)
    }

    /// Sets the conversion, from the original dtype.
    pub(super) fn cast(&mut self, to: Dtype, options: &ConvertOptions) -> Result<()> {
        let cast = Converted::new(self.origin.clone(), to, options)
            .map_err(|error| self.origin.locate(error))?;
        self.byte_len =
            shape::byte_len(to, self.shape()).map_err(|kind| self.origin.locate(kind.into()))?;
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
            Some(converted) => converted.write_to(sink).map_err(|error| self.origin.locate(error)),
            None => self.origin.write_to(sink),
        }
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        self.cast.is_none().then(|| self.origin.scales())?
    }

    /// The same storage for all names of one tensor that are saved in one dtype.
    fn storage(&self) -> Option<Storage> {
        // The tie number stands for an address: `Tied` only compares them.
        // An empty tensor gets one byte, so that it can be tied. See `Tied::with_empty`.
        Some(Storage::whole(self.tie, self.byte_len.max(1)))
    }
}

/// The address of the source of a tensor.
fn address<S>(tensor: &LazyTensor<'_, S>) -> usize {
    ptr::from_ref(tensor.source()).addr()
}

fn key_of_gathered<'t, S>(tensor: &'t GatheredTensor<'_, S>) -> Key<'t> {
    (tensor.parts().next().map_or(0, address), tensor.name())
}

impl<S> Origin<'_, S> {
    /// Adds the tensor's name, and its file if it has one, to an error.
    fn locate(&self, error: Error) -> Error {
        match self {
            Self::Lazy(tensor) => tensor.locate(error),
            Self::Gathered(tensor) => error.in_tensor(tensor.name()),
            Self::Added(added, _) => error.in_tensor(&added.name),
        }
    }
}

impl<S> Clone for Origin<'_, S> {
    fn clone(&self) -> Self {
        match self {
            Self::Lazy(tensor) => Self::Lazy(*tensor),
            Self::Gathered(tensor) => Self::Gathered(Arc::clone(tensor)),
            Self::Added(added, scales) => Self::Added(Arc::clone(added), scales.clone()),
        }
    }
}

impl<S: ReadAt> TensorSource for Origin<'_, S> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Lazy(tensor) => tensor.dtype(),
            Self::Gathered(tensor) => tensor.dtype(),
            Self::Added(added, _) => added.tensor.dtype(),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Lazy(tensor) => tensor.shape(),
            Self::Gathered(tensor) => tensor.shape(),
            Self::Added(added, _) => added.tensor.shape(),
        }
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match self {
            Self::Lazy(tensor) => tensor.write_to(sink),
            Self::Gathered(tensor) => tensor.write_to(sink),
            Self::Added(added, _) => added.tensor.write_to(sink),
        }
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        match self {
            Self::Lazy(tensor) => TensorSource::scales(tensor),
            Self::Gathered(tensor) => TensorSource::scales(&**tensor),
            Self::Added(added, scales) => added.tensor.scales().or_else(|| {
                let scales = scales.as_ref()?;
                let (weight, tensor) = (added.tensor.shape().to_vec(), Box::new(&*scales.tensor));
                Some(ScaleSource::of_whole(&scales.name, weight, tensor))
            }),
        }
    }
}

impl<S> fmt::Debug for Origin<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lazy(tensor) => f.debug_tuple("Lazy").field(&tensor.name()).finish(),
            Self::Gathered(tensor) => f.debug_tuple("Gathered").field(&tensor.name()).finish(),
            Self::Added(added, _) => f.debug_tuple("Added").field(&added.name).finish(),
        }
    }
}
