//! The only file that makes and reads a burnpack tensor, the type that burn-store passes.
//! See [`burn_pack::Tensor`](burn_store::burn_pack::Tensor).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::module::{Module, Param, ParamId, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{AllocationProperty, Bytes, DType, Shape, Tensor, TensorData};
use burn_store::burn_pack::Error as PackError;
pub(crate) use burn_store::burn_pack::Tensor as PackTensor;
use burn_store::{ModuleAdapter, ModuleContext, bridge};
use safetensors_core::framework::{Framework, write_native};
use safetensors_core::save::Sink;
use safetensors_core::tied::Storage;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result, TensorSource,
    Widening, lock, shape,
};

use super::filter::Filter;
use super::parameters::Kind;
use crate::error::catch_panic;
use crate::location::{Location, visit_parameters};
use crate::pytorch::{Layout, StoredParameter, is_column, put, take};
use crate::save::DataSource;
use crate::{Burn, StoreError, dtype, load};

/// A length that stays in the processor's cache, a multiple of the length of every element.
const PIECE: usize = 256 << 10;

/// Makes a tensor with bytes that are read each time they are requested. `options` must be made for
/// burn.
pub(crate) fn of_checkpoint<S: ReadAt + 'static>(
    checkpoint: &Arc<Checkpoint<S>>,
    tensor: &LazyTensor<'_, S>,
    name: String,
    id: Option<u64>,
    options: &LoadOptions,
) -> Result<PackTensor> {
    let described = options.clone().widening(Widening::Lossless);
    let loaded = tensor.dtype_plan(&described);
    let loaded = loaded.or_else(|_| described.dtype_plan(tensor.dtype()))?;
    let to = loaded.dtype();
    let shape = loaded.shape(tensor.shape());
    let bytes = shape::byte_len(to, &shape)?;
    let byte_len = usize::try_from(bytes).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    let to = dtype::to_burn(to).ok_or_else(|| Error::unsupported_dtype::<Burn>(to))?;
    let checkpoint = Arc::clone(checkpoint);
    let in_file = tensor.name().to_owned();
    let options = options.clone();
    Ok(PackTensor::deferred(name, to, Shape::from(shape), id, byte_len, move || {
        let bytes = read_from(&checkpoint, &in_file, &options);
        bytes.map_err(|error| PackError::ValidationError(error.to_string()))
    }))
}

fn read_from<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    name: &str,
    options: &LoadOptions,
) -> Result<Bytes> {
    let tensor = checkpoint.tensor(name)?;
    let data = Burn::from_exact(tensor.read_with(options)?, &());
    Ok(data.map_err(|error| tensor.locate(error))?.into_bytes())
}

/// Bytes that were read in advance. They can be taken once.
#[derive(Clone, Debug, Default)]
pub(crate) struct AheadBytes(Arc<Mutex<Option<Bytes>>>);

impl AheadBytes {
    pub(crate) fn fill(&self, data: TensorData) {
        *lock(&self.0) = Some(data.into_bytes());
    }

    fn take(&self) -> Option<Bytes> {
        lock(&self.0).take()
    }
}

/// Makes the tensor of a parameter. `slot` gives the bytes of `source` the first time; they are
/// read after that. Returns `None` if the shape of `source` does not fit.
pub(crate) fn for_parameter(
    source: &PackTensor,
    slot: AheadBytes,
    location: &Location,
    stored: &StoredParameter,
    adapter: &dyn ModuleAdapter,
) -> Option<PackTensor> {
    let again = source.clone();
    let mut tensor = PackTensor::deferred(
        location.path(),
        source.dtype,
        source.shape.clone(),
        source.param_id,
        source.byte_len(),
        move || slot.take().map_or_else(|| again.to_bytes(), Ok),
    );
    if !stored.is_as_in_module() {
        let shape = stored.shape_in_module(&source.shape)?;
        let stored = stored.clone();
        let path = location.path();
        tensor =
            bridge::map_data(tensor, path, source.dtype, shape, move |data| take(data, &stored));
    }
    Some(adapter.adapt(tensor, ModuleContext::new(location.containers())))
}

/// Returns data with clones that share its memory.
pub(crate) fn shared(data: TensorData) -> Result<TensorData> {
    let (bytes, shape, dtype) = data.into_parts();
    let bytes = bytes::Bytes::from_owner(Owner(bytes));
    load::from_bytes(Bytes::from_shared(bytes, AllocationProperty::Native), shape.to_vec(), dtype)
}

struct Owner(Bytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) fn check_adapter(adapter: &dyn ModuleAdapter, layout: Layout) -> Result<()> {
    if !layout.pytorch {
        return Ok(());
    }
    let row = TensorData::zeros::<f32, _>([1, 2]);
    let adapted = catch_panic(|| {
        let weight = bridge::from_data(row, "weight".into(), None);
        adapter.adapt(weight, ModuleContext::new(&["Struct:Linear".into()])).shape
    });
    match adapted {
        Ok(shape) if shape[..] == [2, 1] => Err(StoreError::TransposedTwice.into()),
        // Whatever else an adapter does with this weight shows with the weights of the module.
        _ => Ok(()),
    }
}

/// Returns `None` if the adapter keeps the name.
pub(crate) fn alternative_name(location: &Location, adapter: &dyn ModuleAdapter) -> Option<String> {
    let module_type = ModuleContext::new(location.containers()).module_type()?;
    adapter
        .get_alternative_param_name(location.name(), module_type)
        .map(|name| location.sibling(&name))
}

/// Reads without consuming the tensor.
pub(crate) fn read(tensor: &PackTensor) -> Result<Bytes> {
    catch_panic(|| tensor.to_bytes())?.map_err(Error::framework::<Burn>)
}

pub(crate) fn into_data(tensor: PackTensor) -> Result<TensorData> {
    catch_panic(|| bridge::into_data(tensor))?.map_err(Error::framework::<Burn>)
}

#[derive(Default)]
pub(crate) struct Collected {
    /// The tensors with the ids of their parameters.
    pub(crate) tensors: Vec<(ParamId, PackTensor)>,
    /// The number of all parameters.
    pub(crate) found: usize,
    /// Tensors of several parameters, with the id of the first one.
    pub(crate) joined: Vec<(ParamId, PackTensor)>,
    /// The paths and ids of these parameters.
    pub(crate) parts: Vec<(String, ParamId)>,
}

/// Collects parameters by their names in the file. The data stays on its device.
pub(crate) fn collect(
    module: &impl Module,
    filter: &Filter,
    adapter: &dyn ModuleAdapter,
    skip_enum_variants: bool,
    layout: Layout,
) -> Result<Collected> {
    let mut collector = Collector {
        location: Location::root(skip_enum_variants),
        filter,
        adapter,
        layout,
        collected: Collected::default(),
        parts: BTreeMap::new(),
    };
    module.visit(&mut collector);
    let Collector { mut collected, parts, .. } = collector;
    for (name, parts) in parts {
        collected.joined.push(join(&name, &mut collected.parts, parts)?);
    }
    Ok(collected)
}

struct Collector<'a> {
    location: Location,
    filter: &'a Filter,
    adapter: &'a dyn ModuleAdapter,
    layout: Layout,
    collected: Collected,
    /// The parts by the name of the tensor.
    parts: BTreeMap<String, Vec<ParameterPart>>,
}

struct ParameterPart {
    stored: StoredParameter,
    id: ParamId,
    tensor: PackTensor,
}

impl Collector<'_> {
    fn add<const D: usize, K: Basic + 'static>(
        &mut self,
        _: Kind,
        param: &Param<Tensor<D, K>>,
        is_column: &dyn Fn() -> bool,
    ) where
        Tensor<D, K>: Parameter,
    {
        let tensor = param.transform_for_save().val();
        let dtype = tensor.dtype();
        let shape = tensor.shape();
        let byte_len = bridge::data_len(dtype, &shape);
        let tensor =
            PackTensor::deferred(self.location.path(), dtype, shape, None, byte_len, move || {
                let data = tensor
                    .try_to_data()
                    .map_err(|error| PackError::ValidationError(error.to_string()))?;
                Ok(data.into_bytes())
            });
        self.add_tensor(tensor, param.id, is_column);
    }

    fn add_tensor(&mut self, tensor: PackTensor, id: ParamId, is_column: &dyn Fn() -> bool) {
        let containers = self.location.containers();
        let mut adapted = self.adapter.adapt(tensor, ModuleContext::new(containers));
        self.collected.found += 1;
        // An adapter that renames a parameter decides how it is stored. Quantised values cannot be
        // transposed, and saving them is an error anyway.
        let is_final =
            adapted.name != self.location.path() || matches!(adapted.dtype, DType::QFloat(_));
        let stored = match self.layout.stored_as(&self.location, is_column).into_iter().next() {
            Some(stored) if !is_final => stored,
            _ => StoredParameter::whole(adapted.name.clone()),
        };
        if !self.filter.matches(&stored.tensor, containers) {
            return;
        }
        if let ([rows, columns], true) = (&adapted.shape[..], stored.transposed) {
            let shape = Shape::from([*columns, *rows]);
            let name = adapted.name.clone();
            let dtype = adapted.dtype;
            let stored = stored.clone();
            adapted = bridge::map_data(adapted, name, dtype, shape, move |d| put(d, &stored));
        }
        if stored.is_part() {
            let parts = self.parts.entry(stored.tensor.clone()).or_default();
            parts.push(ParameterPart { stored, id, tensor: adapted });
        } else {
            adapted.name = stored.tensor;
            self.collected.tensors.push((id, adapted));
        }
    }
}

/// Returns the tensor with the id of the first part. Adds the ids of all.
fn join(
    name: &str,
    ids: &mut Vec<(String, ParamId)>,
    mut parts: Vec<ParameterPart>,
) -> Result<(ParamId, PackTensor)> {
    let failed = |error: StoreError| Err(Error::from(error).in_tensor(name));
    parts.sort_by_key(|part| part.stored.part);
    let expected = parts.first().map_or(0, |part| part.stored.parts);
    let numbers = parts.iter().map(|part| part.stored.part);
    let first = match parts.first() {
        Some(first) if numbers.eq(0..expected) => first,
        _ => {
            let found = parts.into_iter().map(|part| part.tensor.name).collect();
            return failed(StoreError::OtherParts { expected, found });
        }
    };
    let id = first.id;
    let dtype = first.tensor.dtype;
    let shape = first.tensor.shape.clone();
    let mut unlike = parts.iter().map(|part| &part.tensor);
    if let Some(tensor) = unlike.find(|other| other.dtype != dtype || other.shape != shape) {
        return failed(StoreError::UnlikeParts {
            path: tensor.name.clone(),
            expected: (dtype, shape.to_vec()),
            found: (tensor.dtype, tensor.shape.to_vec()),
        });
    }
    ids.extend(parts.iter().map(|part| (part.tensor.name.clone(), part.id)));
    let mut whole = shape.to_vec();
    if let Some(rows) = whole.first_mut() {
        *rows *= expected;
    }
    let parts: Vec<_> = parts.into_iter().map(|part| part.tensor).collect();
    let byte_len = parts.iter().map(PackTensor::byte_len).sum();
    let whole = Shape::from(whole);
    let tensor = PackTensor::deferred(name.to_owned(), dtype, whole, None, byte_len, move || {
        let mut bytes = Vec::with_capacity(byte_len);
        for part in &parts {
            bytes.extend_from_slice(&part.to_bytes()?);
        }
        Ok(Bytes::from_bytes_vec(bytes))
    });
    Ok((id, tensor))
}

visit_parameters!(Collector<'_>);

/// A tensor with data that is copied from its device, or read from its file, when it is written.
pub(crate) struct PackSource {
    tensor: PackTensor,
    dtype: Dtype,
    tie: u64,
}

impl PackSource {
    /// Takes a number `tie` that tied tensors share.
    pub(crate) fn new(tensor: PackTensor, tie: u64) -> Result<Self> {
        match dtype::to_file(tensor.dtype) {
            Ok(dtype) => Ok(Self { tensor, dtype, tie }),
            Err(error) => Err(error.in_tensor(&tensor.name)),
        }
    }

    fn write_pieces(&self, bytes: &Bytes, sink: &mut Sink<'_>) -> Result<()> {
        for start in (0..bytes.len()).step_by(PIECE) {
            let end = bytes.len().min(start + PIECE);
            let piece = bytes.view(start, end);
            let piece = piece.as_deref().unwrap_or_else(|_| &bytes[start..end]);
            write_native(self.dtype, piece, sink)?;
        }
        Ok(())
    }
}

impl TensorSource for PackSource {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let bytes = read(&self.tensor)?;
        // The booleans of some backends must be converted, and are few.
        if bytes.property() == AllocationProperty::File && !self.tensor.dtype.is_bool() {
            return catch_panic(|| self.write_pieces(&bytes, sink)).flatten();
        }
        let data = load::from_bytes(bytes, self.tensor.shape.to_vec(), self.tensor.dtype)?;
        DataSource::new(&data)?.write_to(sink)
    }

    /// Returns the number of the tie instead of an address: the data may be on a device.
    fn storage(&self) -> Option<Storage> {
        let byte_len = shape::byte_len(self.dtype, &self.tensor.shape).ok()?;
        Some(Storage::whole(self.tie, byte_len))
    }
}
