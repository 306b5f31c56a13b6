//! [`adopt`]: a module with its parameters' values replaced.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use safetensors_core::{Error, Result};

use super::location::Location;
use crate::{Burn, StoreError};

/// A module like `module`, in which the parameters whose path is in `data` have these values, on
/// the devices they were on.
///
/// The data must have the parameters' kinds and shapes. Parameters keep their ids, and whether they
/// require gradients. `module` itself stays as it is: cloning one copies no tensor.
pub(crate) fn adopt<M: Module>(
    module: &M,
    data: HashMap<String, TensorData>,
    skip_enum_variants: bool,
) -> Result<M> {
    let mut mapper = Mapper { location: Location::root(skip_enum_variants), data };
    // A backend says by a panic that its device lacks a dtype or memory. Only the clone is lost to
    // it.
    catch_unwind(AssertUnwindSafe(|| module.clone().map(&mut mapper))).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let error = Error::framework::<Burn>(StoreError::Panicked {
            message: text.unwrap_or("without a message").into(),
        });
        // The traversal stopped at the parameter whose tensor it was.
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
        // Without the dtype, burn would convert to the device's default. For booleans it always
        // does.
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
