//! [`Burn`]: implements core's [`Framework`] for burn, so that core can load and save its tensors.

use burn::tensor::TensorData;
use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Dtype, Result, TensorBuf, TensorSource};

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
        load::from_exact(buf)
    }

    fn source(tensor: &TensorData) -> Result<impl TensorSource + '_> {
        save::DataSource::new(tensor)
    }
}
