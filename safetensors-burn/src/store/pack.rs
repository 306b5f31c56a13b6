//! The only file that makes and reads a [`burn_pack::Tensor`](burn_store::burn_pack::Tensor). It is
//! the type in which burn-store's adapters and the `ModuleStore` trait pass tensors.

use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleVisitor, Param, ParamId, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Bytes, DType, Int, Shape, Tensor, TensorData};
use burn_store::burn_pack::Error as PackError;
/// A named tensor of run-time dtype and shape, whose bytes may be produced on demand.
pub(crate) use burn_store::burn_pack::Tensor as PackTensor;
use burn_store::{ModuleAdapter, ModuleContext, bridge};
use safetensors_core::framework::Framework;
use safetensors_core::save::Sink;
use safetensors_core::slice::TensorPart;
use safetensors_core::tied::Storage;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result, TensorSource,
    Widening, shape,
};

use super::filter::Filter;
use super::location::Location;
use crate::error::catch_panic;
use crate::save::DataSource;
use crate::{Burn, dtype};

/// A tensor of a checkpoint under the name that the module uses, with the id that was saved for it.
/// Its bytes are read each time they are requested, with these options, which must be made for
/// burn. If the options do not allow a widening that the tensor needs, only reading it is an error.
pub(crate) fn of_checkpoint<S: ReadAt + 'static>(
    checkpoint: &Arc<Checkpoint<S>>,
    tensor: &LazyTensor<'_, S>,
    name: String,
    id: Option<u64>,
    options: &LoadOptions,
) -> Result<PackTensor> {
    let described = options.clone().widening(Widening::Lossless);
    let loaded = checkpoint.loaded(tensor, &described);
    let loaded = loaded.or_else(|_| described.loaded(tensor.dtype()))?;
    let (to, shape) = (loaded.dtype(), loaded.shape(tensor.shape()));
    let bytes = shape::byte_len(to, &shape)?;
    let byte_len = usize::try_from(bytes).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    let Some(to) = dtype::to_burn(to) else {
        return Err(Error::unsupported_dtype::<Burn>(to));
    };
    let (checkpoint, in_file, options) =
        (Arc::clone(checkpoint), tensor.name().to_owned(), options.clone());
    let read = move || {
        let tensor = checkpoint.tensor(&in_file)?;
        let buf = checkpoint.read_part(&in_file, TensorPart::Whole, &options)?;
        let data = Burn::from_exact(buf, &());
        let data = data.map_err(|error| tensor.locate(error))?;
        Ok(data.into_bytes())
    };
    Ok(PackTensor::deferred(name, to, Shape::from(shape), id, byte_len, move || {
        read()
            .map_err(|error: safetensors_core::Error| PackError::ValidationError(error.to_string()))
    }))
}

/// Holds the bytes of a tensor that were read in advance. They can be taken once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Bytes>>>);

impl Slot {
    pub(crate) fn fill(&self, data: TensorData) {
        if let Ok(mut slot) = self.0.lock() {
            *slot = Some(data.into_bytes());
        }
    }

    fn take(&self) -> Option<Bytes> {
        self.0.lock().ok()?.take()
    }
}

/// The tensor of a parameter: `source` under the path of the parameter, adapted to the containers
/// of the parameter. The bytes come from `slot` the first time, and from `source` after that.
pub(crate) fn for_parameter(
    source: &PackTensor,
    slot: Slot,
    location: &Location,
    adapter: &dyn ModuleAdapter,
) -> PackTensor {
    let again = source.clone();
    let provide = move || slot.take().map_or_else(|| again.to_bytes(), Ok);
    let (dtype, shape, id) = (source.dtype, source.shape.clone(), source.param_id);
    let tensor =
        PackTensor::deferred(location.path(), dtype, shape, id, source.byte_len(), provide);
    adapter.adapt(tensor, ModuleContext::new(location.containers()))
}

/// The id that was saved for a tensor of a checkpoint.
pub(crate) fn saved_id(source: &PackTensor) -> Option<ParamId> {
    source.param_id.map(ParamId::from)
}

/// The path of a parameter under the name that the adapter has for it. `None` if the adapter has no
/// other name.
pub(crate) fn alternative_name(location: &Location, adapter: &dyn ModuleAdapter) -> Option<String> {
    let module_type = ModuleContext::new(location.containers()).module_type()?;
    adapter
        .get_alternative_param_name(location.name(), module_type)
        .map(|name| location.sibling(&name))
}

/// The dtype and shape of a tensor.
pub(crate) fn description(tensor: &PackTensor) -> (DType, &Shape) {
    (tensor.dtype, &tensor.shape)
}

/// Produces the bytes of a tensor without consuming it.
pub(crate) fn read(tensor: &PackTensor) -> Result<Bytes> {
    catch_panic(|| tensor.to_bytes())?.map_err(Error::framework::<Burn>)
}

/// Converts a tensor to `TensorData`. Its bytes are produced now if they were not before.
pub(crate) fn into_data(tensor: PackTensor) -> Result<TensorData> {
    catch_panic(|| bridge::into_data(tensor))?.map_err(Error::framework::<Burn>)
}

/// The parameters of a module, as tensors for a file.
#[derive(Default)]
pub(crate) struct Collected {
    /// The tensors whose names pass the filter, each with the id of its parameter.
    pub(crate) tensors: Vec<(ParamId, PackTensor)>,
    /// The number of all parameters.
    pub(crate) found: usize,
}

/// Adapts the parameters of a module for a file, and selects those whose adapted names pass the
/// filter. The data stays on its device until it is written.
pub(crate) fn collect(
    module: &impl Module,
    filter: &Filter,
    adapter: &dyn ModuleAdapter,
    skip_enum_variants: bool,
) -> Collected {
    let mut collector = Collector {
        location: Location::root(skip_enum_variants),
        filter,
        adapter,
        collected: Collected::default(),
    };
    module.visit(&mut collector);
    collector.collected
}

struct Collector<'a> {
    location: Location,
    filter: &'a Filter,
    adapter: &'a dyn ModuleAdapter,
    collected: Collected,
}

impl Collector<'_> {
    fn add<const D: usize, K: Basic + 'static>(&mut self, param: &Param<Tensor<D, K>>)
    where
        Tensor<D, K>: Parameter,
    {
        let tensor = param.transform_for_save().val();
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let byte_len = bridge::data_len(dtype, &shape);
        let tensor =
            PackTensor::deferred(self.location.path(), dtype, shape, None, byte_len, move || {
                let data = tensor
                    .try_to_data()
                    .map_err(|error| PackError::ValidationError(error.to_string()))?;
                Ok(data.into_bytes())
            });
        let containers = self.location.containers();
        let adapted = self.adapter.adapt(tensor, ModuleContext::new(containers));
        self.collected.found += 1;
        if self.filter.matches(&adapted.name, containers) {
            self.collected.tensors.push((param.id, adapted));
        }
    }
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.location.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, container_type: &str) {
        self.location.exit(container_type);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param);
    }
}

/// A tensor of a module as a [`TensorSource`]. Its data is copied from its device when it is
/// written.
pub(crate) struct ModuleSource {
    tensor: PackTensor,
    dtype: Dtype,
    tie: u64,
}

impl ModuleSource {
    /// An error that names the tensor, if the format lacks its dtype. `tie` is the same number for
    /// all tensors that are tied.
    pub(crate) fn new(tensor: PackTensor, tie: u64) -> Result<Self> {
        match dtype::to_file(tensor.dtype) {
            Ok(dtype) => Ok(Self { tensor, dtype, tie }),
            Err(error) => Err(error.in_tensor(&tensor.name)),
        }
    }
}

impl TensorSource for ModuleSource {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let data = catch_panic(|| bridge::to_data(&self.tensor))?;
        DataSource::new(&data.map_err(Error::framework::<Burn>)?)?.write_to(sink)
    }

    /// The number of the tie in place of an address, because the data may lie on a device.
    fn storage(&self) -> Option<Storage> {
        let byte_len = shape::byte_len(self.dtype, &self.tensor.shape).ok()?;
        Some(Storage::whole(self.tie, byte_len))
    }
}
