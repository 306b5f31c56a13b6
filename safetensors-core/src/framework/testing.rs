//! A framework for unit tests.

use std::sync::Arc;

use crate::format::convert::support::Support;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::tensor::{TensorBuf, TensorSource};
use crate::framework::Framework;

/// A library with buffers in memory as tensors.
#[derive(Debug)]
pub(super) struct Bufs;

impl Framework for Bufs {
    const NAME: &'static str = "bufs";
    type Tensor = Arc<TensorBuf>;
    type Device = ();

    fn support(dtype: Dtype) -> Support {
        if dtype == Dtype::I8 { Support::Widened(Dtype::I16) } else { Support::Exact }
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<Arc<TensorBuf>> {
        Ok(buf.into())
    }

    fn source(tensor: &Arc<TensorBuf>) -> Result<impl TensorSource + '_> {
        Ok(&**tensor)
    }
}
