//! [`Burn`]: implements core's [`Framework`] for burn, so that core can load and save its tensors.

use burn::tensor::TensorData;
use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Dtype, Result, TensorBuf, TensorSource};

use crate::{dtype, load, save};

/// The [`Framework`] of burn, for code that is generic over tensor libraries.
///
/// Its tensor is [`TensorData`], whose dtype and number of dimensions are known at run time.
/// `Tensor::from_data` makes a `Tensor<D, K>` of it on any device.
///
/// ```
/// use burn::tensor::{DType, TensorData};
/// use safetensors_burn::Burn;
/// use safetensors_core::framework::Framework;
/// use safetensors_core::{TensorBuf, Widening};
///
/// let buf = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0])?;
/// let data: TensorData = Burn::from_buf(buf, &(), Widening::Refuse)?;
/// assert_eq!((data.dtype(), &data.shape()[..]), (DType::F32, &[2][..]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burn;

impl Framework for Burn {
    const NAME: &'static str = "burn";

    type Tensor = TensorData;

    type Device = ();

    fn support(dtype: Dtype) -> Support {
        dtype::support(dtype)
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorData> {
        load::from_exact(buf)
    }

    fn source(tensor: &TensorData) -> Result<impl TensorSource + '_> {
        save::DataSource::new(tensor)
    }
}
