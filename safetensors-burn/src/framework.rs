//! [`Framework`] for [`Burn`].

use burn::tensor::TensorData;
use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Dtype, Error, Result, TensorBuf, TensorSource};

use crate::Burn;
use crate::{dtype, load, save};

impl Framework for Burn {
    const NAME: &'static str = "burn";

    type Tensor = TensorData;

    type Device = ();

    fn support(dtype: Dtype) -> Support {
        dtype::support(dtype)
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorData> {
        let dtype = buf.dtype();
        let to = dtype::to_burn(dtype).ok_or_else(|| Error::unsupported_dtype::<Self>(dtype))?;
        let shape = buf.shape().to_vec();
        load::from_bytes(dtype::into_bytes(buf)?, shape, to)
    }

    fn source(tensor: &TensorData) -> Result<impl TensorSource + '_> {
        save::DataSource::new(tensor)
    }
}
