//! [`Origin`]: the source of a tensor.

use std::fmt;
use std::sync::Arc;

use crate::file::io::ReadAt;
use crate::file::load::LazyTensor;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, Result};
use crate::format::tensor::{Sink, TensorSource};

pub(super) enum Origin<'a, S> {
    Lazy(LazyTensor<'a, S>),
    Added(Arc<dyn TensorSource + Send + 'a>, Arc<str>),
}

impl<S> Origin<'_, S> {
    pub(super) fn locate(&self, error: Error) -> Error {
        match self {
            Self::Lazy(tensor) => tensor.locate(error),
            Self::Added(_, name) => error.in_tensor(name),
        }
    }
}

impl<S> Clone for Origin<'_, S> {
    fn clone(&self) -> Self {
        match self {
            Self::Lazy(tensor) => Self::Lazy(*tensor),
            Self::Added(tensor, name) => Self::Added(Arc::clone(tensor), Arc::clone(name)),
        }
    }
}

impl<S> fmt::Debug for Origin<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lazy(tensor) => f.debug_tuple("Lazy").field(&tensor.name()).finish(),
            Self::Added(_, name) => f.debug_tuple("Added").field(name).finish(),
        }
    }
}

impl<S: ReadAt> Origin<'_, S> {
    fn source(&self) -> &dyn TensorSource {
        match self {
            Self::Lazy(tensor) => tensor,
            Self::Added(tensor, _) => &**tensor,
        }
    }
}

impl<S: ReadAt> TensorSource for Origin<'_, S> {
    fn dtype(&self) -> Dtype {
        self.source().dtype()
    }

    fn shape(&self) -> &[usize] {
        self.source().shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.source().write_to(sink)
    }

    fn refuse_codes(&self) -> Result<()> {
        self.source().refuse_codes()
    }
}
