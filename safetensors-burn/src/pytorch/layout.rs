//! [`Layout`]: the names and shapes of the tensors of a file.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};

use super::layers;
use super::stored::StoredParameter;
use crate::error::catch_panic;
use crate::location::Location;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// PyTorch's names and shapes instead of burn's.
    pub(crate) pytorch: bool,
    /// An attention's projections are saved in one tensor of PyTorch.
    pub(crate) fused_attention: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Self { pytorch: false, fused_attention: true }
    }
}

impl Layout {
    /// Returns the ways in which a file may store a parameter. Saving uses the first.
    pub(crate) fn stored_as(
        self,
        location: &Location,
        is_column: &dyn Fn() -> bool,
    ) -> Vec<StoredParameter> {
        if self.pytorch {
            layers::stored_as(location, is_column, self.fused_attention)
        } else {
            vec![StoredParameter::whole(location.path())]
        }
    }
}

/// Returns `true` if burn saves a parameter as its transpose. Does not initialize it.
pub(crate) fn is_column<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if D != 2 {
        return false;
    }
    // The shape of a square parameter does not show it, so a small one is loaded.
    let mut shape = [1; D];
    shape[D - 1] = 2;
    let loaded = catch_panic(|| {
        let data = TensorData::zeros::<f32, _>(shape);
        let row = Tensor::from_data(data, &param.lazy_device());
        param.clone().transform_for_load(row, param.id).base().shape()
    });
    // The function that loads the parameter may refuse so small a value, and then does something
    // else than to transpose.
    loaded.is_ok_and(|loaded| loaded[..] != shape)
}
