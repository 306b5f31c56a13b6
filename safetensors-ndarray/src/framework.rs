//! [`Ndarray`]: implements core's [`Framework`] for ndarray, so that core can load and save arrays.

use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Dtype, Result, TensorBuf, TensorSource};

use crate::{DynArray, dtype};

/// The [`Framework`] of ndarray. Its tensors are [`DynArray`]s in main memory. It holds every dtype
/// exactly.
///
/// ```
/// use safetensors_core::framework::Framework;
/// use safetensors_core::{TensorBuf, Widening};
/// use safetensors_ndarray::Ndarray;
///
/// let buf = TensorBuf::from_vec(vec![2, 2], vec![1_u8, 2, 3, 4])?;
/// let array = Ndarray::from_buf(buf, &(), Widening::Refuse)?;
/// assert_eq!(array.shape(), [2, 2]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ndarray;

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
