//! [`parameters`]: lists the parameters of a module without initializing them.

use burn::module::{Module, Param, ParamId, Parameter as BurnParameter};
use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, Shape, Tensor};

use crate::location::{Location, visit_parameters};
use crate::pytorch::{Layout, StoredParameter, is_column};

/// The kind of elements. A load may change their width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    pub(crate) fn accepts(self, dtype: DType) -> bool {
        match self {
            Self::Float => dtype.is_float() || matches!(dtype, DType::QFloat(_)),
            Self::Int => dtype.is_int() || dtype.is_uint(),
            // Some files hold booleans as the integers in which a backend stores them.
            Self::Bool => dtype.is_bool() || matches!(dtype, DType::U8 | DType::U32),
        }
    }

    pub(crate) fn default_dtype(self, device: &Device) -> DType {
        let settings = device.settings();
        match self {
            Self::Float => settings.float_dtype.into(),
            Self::Int => settings.int_dtype.into(),
            Self::Bool => settings.bool_dtype.into(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) location: Location,
    pub(crate) id: ParamId,
    pub(crate) kind: Kind,
    /// The dtype for messages. A parameter without a value has the default dtype of its device.
    pub(crate) dtype: DType,
    /// The shape of the saved form.
    pub(crate) shape: Shape,
    /// How a file may store the parameter. The first that the file has counts.
    pub(crate) stored_as: Vec<StoredParameter>,
}

/// Returns the parameters in the order of the fields.
pub(crate) fn parameters(
    module: &impl Module,
    skip_enum_variants: bool,
    layout: Layout,
) -> Vec<Parameter> {
    let location = Location::root(skip_enum_variants);
    let mut visitor = Visitor { location, layout, parameters: Vec::new() };
    module.visit(&mut visitor);
    visitor.parameters
}

struct Visitor {
    location: Location,
    layout: Layout,
    parameters: Vec<Parameter>,
}

impl Visitor {
    fn add<const D: usize, K: Basic>(
        &mut self,
        kind: Kind,
        param: &Param<Tensor<D, K>>,
        is_column: &dyn Fn() -> bool,
    ) where
        Tensor<D, K>: BurnParameter,
    {
        // A parameter may be saved in another form than it is used in. For example, a linear layer
        // of `Col` layout is saved transposed. A parameter without a value declares the shape of
        // its saved form. A value must be transformed first to get that shape.
        let (dtype, shape) = if param.is_initialized() {
            let value = param.transform_for_save().val();
            (value.dtype(), value.shape())
        } else {
            (kind.default_dtype(&param.lazy_device()), param.lazy_shape())
        };
        self.parameters.push(Parameter {
            location: self.location.clone(),
            id: param.id,
            kind,
            dtype,
            shape,
            stored_as: self.layout.stored_as(&self.location, is_column),
        });
    }
}

visit_parameters!(Visitor);
