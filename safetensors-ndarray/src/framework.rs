//! [`Framework`] for [`Ndarray`].

use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Dtype, Result, TensorBuf, TensorSource};

use crate::Ndarray;
use crate::{DynArray, dtype};

impl Framework for Ndarray {
    const NAME: &'static str = "ndarray";

    type Tensor = DynArray;

    type Device = ();

    fn support(dtype: Dtype) -> Support {
        dtype::support(dtype)
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<DynArray> {
        DynArray::from_buf(buf)
    }

    fn source(tensor: &DynArray) -> Result<impl TensorSource + '_> {
        Ok(tensor)
    }
}
