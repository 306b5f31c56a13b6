//! The module that records are restored for.

use std::collections::BTreeMap;

use burn::module::{Module, Param, Parameter as BurnParameter};
use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, Result};

use super::container::Content;
use super::names::Ids;
use super::record::RecordFile;
use super::taker::Taker;
use crate::dtype;
use crate::error::catch_panic;
use crate::location::{Location, visit_parameters};
use crate::pytorch::{Layout, StoredParameter, is_column};
use crate::store::Kind;

#[derive(Debug)]
pub(super) struct Parameters {
    /// Makes paths as burn's records do.
    location: Location,
    all: BTreeMap<String, Parameter>,
    device: Option<Device>,
}

#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) id: u64,
    saved_shape: Vec<usize>,
    /// The shape in the module, and of the gradient.
    pub(super) shape: Vec<usize>,
    /// The dtype in the module, and of the gradient. A parameter without a value has the default
    /// dtype of its device. `None` if the format lacks it.
    pub(super) dtype: Option<Dtype>,
    /// A float that is neither frozen nor a buffer.
    pub(super) is_trained: bool,
    location: Location,
    /// Differs if the parameter is converted when it is saved. `None` if unknown.
    saved_dtype: Option<Dtype>,
}

/// Parameters and their paths by the ids of an epoch.
pub(super) type Owners<'a> = BTreeMap<u64, (&'a str, &'a Parameter)>;

impl Parameter {
    /// Returns at least one way.
    pub(super) fn stored_as(&self) -> Vec<StoredParameter> {
        // The tensors of a state have the shape of the gradient, in which no matrix is in columns.
        let layout = Layout { pytorch: true, ..Layout::default() };
        layout.stored_as(&self.location.without_enum_variants(), &|| false)
    }
}

impl Parameters {
    pub(super) fn new(module: &impl Module) -> Self {
        let location = Location::root(false);
        let mut parameters = Self { location, all: BTreeMap::new(), device: None };
        module.visit(&mut parameters);
        parameters
    }

    /// Returns `None` if there is no parameter, or if burn copies them.
    pub(super) fn taker(&self) -> Option<Taker> {
        let shapes = self.all.iter().map(|(path, parameter)| {
            // A quantised tensor has no dtype.
            parameter.dtype.map(|_| (path.clone(), parameter.saved_shape.clone()))
        });
        Taker::new(shapes.collect::<Option<_>>()?, self.device.as_ref()?)
    }

    /// Returns parameters with their paths. A tied one has several.
    pub(super) fn by_id(&self) -> BTreeMap<u64, Vec<(&str, &Parameter)>> {
        let mut by_id = BTreeMap::<_, Vec<_>>::new();
        for (path, parameter) in &self.all {
            by_id.entry(parameter.id).or_default().push((path.as_str(), parameter));
        }
        by_id
    }

    pub(super) fn get(&self, path: &str) -> Option<(&str, &Parameter)> {
        self.all.get_key_value(path).map(|(path, parameter)| (path.as_str(), parameter))
    }

    /// Returns the parameter that replaces each id of a model, for a tied one by its first path.
    pub(super) fn owners(&self, model: &Content) -> Owners<'_> {
        let mut owners = Owners::new();
        for (path, parameter) in &self.all {
            if let Some(id) = model.tensors.get(path).and_then(|tensor| tensor.param_id) {
                // The first of several parameters with one id: they share a value, and its state is
                // one.
                owners.entry(id).or_insert((path, parameter));
            }
        }
        owners
    }

    pub(super) fn check(&self, record: &RecordFile) -> Result<()> {
        let found: BTreeMap<&str, (Dtype, &[usize])> =
            record.tensors().map(|t| (t.name(), (t.dtype(), t.shape()))).collect();
        let mut mismatches = Vec::new();
        for (path, parameter) in &self.all {
            let Some(&(dtype, shape)) = found.get(path.as_str()) else {
                mismatches.push(Mismatch::Missing { name: path.clone() });
                continue;
            };
            mismatches.extend(Mismatch::of_shapes(path, &parameter.saved_shape, shape));
            let saved_dtype = parameter.saved_dtype;
            mismatches.extend(saved_dtype.and_then(|it| Mismatch::of_dtypes(path, it, dtype)));
        }
        // A record with more belongs to another model, even if this one would find all it needs.
        let extra = found.keys().filter(|name| !self.all.contains_key(**name));
        mismatches.extend(extra.map(|name| Mismatch::Extra { name: (*name).into() }));
        Mismatch::refuse(mismatches)
    }

    /// Gives a record that has been [compared](Parameters::check) the ids of this module. Tied
    /// parameters get one id.
    pub(super) fn adapt_model(&self, model: &mut RecordFile) {
        let content = model.content();
        let owners = self.owners(&content);
        let mut ids = BTreeMap::new();
        for (path, parameter) in &self.all {
            let saved = content.tensors.get(path).and_then(|tensor| tensor.param_id);
            let owner = saved.and_then(|id| owners.get(&id));
            ids.insert(path.clone(), owner.map_or(parameter.id, |(_, owner)| owner.id));
        }
        model.ids = Ids::OfTensors(ids);
    }

    fn add<const D: usize, K: Basic>(
        &mut self,
        kind: Kind,
        param: &Param<Tensor<D, K>>,
        is_column: &dyn Fn() -> bool,
    ) where
        Tensor<D, K>: BurnParameter,
    {
        self.device.get_or_insert_with(|| param.lazy_device().inner());
        // burn compares with this shape, too.
        let saved_shape = param.lazy_shape().to_vec();
        let mut shape = saved_shape.clone();
        let (dtype, saved_dtype) = if param.is_initialized() {
            (param.dtype(), Some(param.transform_for_save().val().dtype()))
        } else {
            // A parameter without a value declares the shape that it is saved in.
            if D == 2 && shape[0] != shape[1] && is_column() {
                shape.reverse();
            }
            (kind.default_dtype(&param.lazy_device()), saved_dtype(param))
        };
        // Without autodiff, parameters and buffers look alike.
        let is_trained = kind == Kind::Float
            && (!param.is_initialized()
                || !param.lazy_device().is_autodiff()
                || BurnParameter::is_require_grad(&**param));
        let parameter = Parameter {
            id: param.id.val(),
            saved_shape,
            shape,
            dtype: dtype::to_file(dtype).ok(),
            is_trained,
            location: self.location.clone(),
            saved_dtype: saved_dtype.and_then(|dtype| dtype::to_file(dtype).ok()),
        };
        self.all.insert(self.location.path(), parameter);
    }
}

/// Tries it with a small value, without initializing the parameter. `None` if its functions refuse
/// that value.
fn saved_dtype<const D: usize, K: Basic>(param: &Param<Tensor<D, K>>) -> Option<DType>
where
    Tensor<D, K>: BurnParameter,
{
    let saved = catch_panic(|| {
        let data = TensorData::zeros::<f32, _>([1; D]);
        let value = Tensor::from_data(data, &param.lazy_device());
        let loaded = param.clone().transform_for_load(value, param.id);
        loaded.transform_for_save().val().dtype()
    });
    saved.ok()
}

visit_parameters!(Parameters);
