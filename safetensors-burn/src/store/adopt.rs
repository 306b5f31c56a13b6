//! [`adopt`]: makes a copy of a module with other values of its parameters.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use safetensors_core::Result;

use crate::error::catch_panic;
use crate::location::Location;

pub(crate) struct NewValue {
    pub(crate) data: TensorData,
    /// `None` if the parameter keeps its id.
    pub(crate) id: Option<ParamId>,
}

/// Returns a clone of `module`, on the same device, with values of the same kinds and shapes.
pub(crate) fn adopt<M: Module>(
    module: &M,
    values: HashMap<String, NewValue>,
    skip_enum_variants: bool,
) -> Result<M> {
    let mut mapper = Mapper { location: Location::root(skip_enum_variants), values };
    // A backend panics if its device lacks a dtype or memory. Only the clone is then lost. The
    // traversal stopped at the parameter that caused the panic.
    catch_panic(|| module.clone().map(&mut mapper))
        .map_err(|error| error.in_tensor(&mapper.location.path()))
}

struct Mapper {
    location: Location,
    values: HashMap<String, NewValue>,
}

impl Mapper {
    fn replace<const D: usize, K: Basic>(
        &mut self,
        param: Param<Tensor<D, K>>,
    ) -> Param<Tensor<D, K>>
    where
        Tensor<D, K>: Parameter,
    {
        let Some(NewValue { data, id }) = self.values.remove(&self.location.path()) else {
            return param;
        };
        // Without the dtype, burn would convert the data to the device's default dtype. It always
        // converts booleans.
        let dtype = data.dtype();
        let tensor = Tensor::from_data(data, (&param.lazy_device(), dtype));
        let id = id.unwrap_or(param.id);
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
