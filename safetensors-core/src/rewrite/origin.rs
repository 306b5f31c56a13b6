//! [`Origin`]: where a tensor of a rewrite comes from, and where its scales do.

use std::sync::Arc;
use std::{fmt, ptr};

use crate::convert::may_have_scales;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::error::Result;
use crate::io::ReadAt;
use crate::load::LazyTensor;
use crate::tensor::{ScaleSource, Sink, TensorSource};

/// The source of a tensor, and the scales that the rewrite itself has beside it.
#[derive(Debug)]
pub(super) struct Origin<'a, S> {
    pub(super) tensor: OriginTensor<'a, S>,
    beside: Option<Arc<Beside<'a, S>>>,
}

/// The source of a tensor.
pub(super) enum OriginTensor<'a, S> {
    /// A tensor of a checkpoint.
    Lazy(LazyTensor<'a, S>),
    /// An added tensor, with the name under which it was added.
    Added(Arc<dyn TensorSource + Send + 'a>, Arc<str>),
}

/// The scales of a weight that does not find them by itself, because they were added, or come from
/// another checkpoint.
#[derive(Debug)]
pub(super) struct Beside<'a, S> {
    pub(super) scales: OriginTensor<'a, S>,
    /// The name that they had when they were found.
    pub(super) name: String,
    /// The name of other scales, beside another name of the weight.
    pub(super) other: Option<String>,
}

/// Tells the tensors of all sources apart: an address, and a name there.
pub(super) type Key<'p> = (usize, &'p str);

impl<'a, S> Origin<'a, S> {
    pub(super) fn new(tensor: OriginTensor<'a, S>) -> Self {
        Self { tensor, beside: None }
    }

    /// The scales of the tensor, if it is a quantised weight.
    pub(super) fn key_of_scales(&self) -> Option<Key<'_>> {
        let own = match &self.tensor {
            OriginTensor::Lazy(tensor) => {
                tensor.scales().map(|scales| (address(&scales), scales.name()))
            }
            OriginTensor::Added(..) => None,
        };
        own.or_else(|| self.beside.as_ref().map(|beside| beside.scales.key()))
    }
}

impl<'a, S: ReadAt> Origin<'a, S> {
    /// Whether this may be a quantised weight whose scales are not known yet.
    pub(super) fn lacks_scales(&self) -> bool {
        may_have_scales(self.tensor.dtype()) && self.scales().is_none()
    }

    pub(super) fn set_beside(&mut self, beside: Beside<'a, S>) {
        self.beside = Some(Arc::new(beside));
    }
}

impl<S> OriginTensor<'_, S> {
    /// The tensor itself, told apart from the tensors of other sources.
    pub(super) fn key(&self) -> Key<'_> {
        match self {
            Self::Lazy(tensor) => (address(tensor), tensor.name()),
            Self::Added(tensor, name) => (Arc::as_ptr(tensor).addr(), name),
        }
    }

    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Self::Lazy(tensor) => tensor.dtype(),
            Self::Added(tensor, _) => tensor.dtype(),
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Lazy(tensor) => tensor.shape(),
            Self::Added(tensor, _) => tensor.shape(),
        }
    }

    /// Adds the tensor's name, and its file if it has one, to an error.
    pub(super) fn locate(&self, error: Error) -> Error {
        match self {
            Self::Lazy(tensor) => tensor.locate(error),
            Self::Added(_, name) => error.in_tensor(name),
        }
    }
}

/// The address of the source of a tensor.
fn address<S>(tensor: &LazyTensor<'_, S>) -> usize {
    ptr::from_ref(tensor.source()).addr()
}

impl<S> Clone for Origin<'_, S> {
    fn clone(&self) -> Self {
        Self { tensor: self.tensor.clone(), beside: self.beside.clone() }
    }
}

impl<S> Clone for OriginTensor<'_, S> {
    fn clone(&self) -> Self {
        match self {
            Self::Lazy(tensor) => Self::Lazy(*tensor),
            Self::Added(tensor, name) => Self::Added(Arc::clone(tensor), Arc::clone(name)),
        }
    }
}

impl<S> fmt::Debug for OriginTensor<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lazy(tensor) => f.debug_tuple("Lazy").field(&tensor.name()).finish(),
            Self::Added(_, name) => f.debug_tuple("Added").field(name).finish(),
        }
    }
}

impl<S: ReadAt> TensorSource for OriginTensor<'_, S> {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match self {
            Self::Lazy(tensor) => tensor.write_to(sink),
            Self::Added(tensor, _) => tensor.write_to(sink),
        }
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        match self {
            Self::Lazy(tensor) => TensorSource::scales(tensor),
            Self::Added(tensor, _) => tensor.scales(),
        }
    }
}

impl<S: ReadAt> TensorSource for Origin<'_, S> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.tensor.write_to(sink)
    }

    fn scales(&self) -> Option<ScaleSource<'_>> {
        self.tensor.scales().or_else(|| {
            let Beside { scales, name, other } = self.beside.as_deref()?;
            let scales = ScaleSource::of_whole(name, self.shape().to_vec(), Box::new(scales));
            Some(ScaleSource { other: other.clone(), ..scales })
        })
    }
}
