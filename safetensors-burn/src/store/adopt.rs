//! [`adopt`]: makes a copy of a module with other values of its parameters.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use safetensors_core::{Error, Result};

use super::location::Location;
use crate::{Burn, StoreError};

/// Returns a clone of `module` in which each parameter whose path is in `data` has that value, on
/// the same device as before.
///
/// The data must have the kinds and shapes of the parameters. Parameters keep their ids, and
/// whether they require gradients. `module` itself does not change. Cloning a module copies no
/// tensor.
pub(crate) fn adopt<M: Module>(
    module: &M,
    data: HashMap<String, TensorData>,
    skip_enum_variants: bool,
) -> Result<M> {
    let mut mapper = Mapper { location: Location::root(skip_enum_variants), data };
    // A backend panics if its device lacks a dtype or memory. Only the clone is then lost.
    catch_unwind(AssertUnwindSafe(|| module.clone().map(&mut mapper))).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let error = Error::framework::<Burn>(StoreError::Panicked {
            message: text.unwrap_or("without a message").into(),
        });
        // The traversal stopped at the parameter that caused the panic.
        error.in_tensor(&mapper.location.path())
    })
}

struct Mapper {
    location: Location,
    data: HashMap<String, TensorData>,
}

impl Mapper {
    fn replace<const D: usize, K: Basic>(
        &mut self,
        param: Param<Tensor<D, K>>,
    ) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter,
    {
        let Some(data) = self.data.remove(&self.location.path()) else {
            return param;
        };
        // Without the dtype, burn would convert the data to the device's default dtype. It always
        // converts booleans.
        let dtype = data.dtype();
        let tensor = Tensor::from_data(data, (&param.lazy_device(), dtype));
        let id = param.id;
        param.transform_for_load(tensor, id)
    }
}

impl ModuleMapper for Mapper {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.location.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        self.location.exit(container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.replace(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.replace(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.replace(param)
    }
}
