//! The module that records are restored for.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, Parameter as BurnParameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor};
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, ErrorKind, Result};

use super::names::Ids;
use super::record::RecordFile;
use super::state;
use crate::dtype;
use crate::pytorch::is_column;
use crate::store::Kind;

/// The parameters of a module.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    path: Vec<String>,
    all: BTreeMap<String, Parameter>,
}

/// A parameter of a module.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) id: u64,
    /// The shape in the record of the module.
    saved_shape: Vec<usize>,
    /// The shape in the module, which is also that of the gradient.
    pub(super) shape: Vec<usize>,
    /// The dtype in a file. A parameter without a value has the default dtype of its device. `None`
    /// if the format lacks the dtype.
    pub(super) dtype: Option<Dtype>,
}

impl Parameters {
    pub(super) fn of(module: &impl Module) -> Self {
        let mut parameters = Self::default();
        module.visit(&mut parameters);
        parameters
    }

    pub(super) fn get(&self, path: &str) -> Option<&Parameter> {
        self.all.get(path)
    }

    /// Compares the record of a module with this module.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`] with all differences.
    pub(super) fn check(&self, record: &RecordFile) -> Result<()> {
        let found: BTreeMap<&str, (Dtype, &[usize])> =
            record.tensors().map(|t| (t.name(), (t.dtype(), t.shape()))).collect();
        let mut mismatches = Vec::new();
        for (path, parameter) in &self.all {
            let name = || path.clone();
            let Some((dtype, shape)) = found.get(path.as_str()) else {
                mismatches.push(Mismatch::Missing { name: name() });
                continue;
            };
            if *shape != parameter.saved_shape {
                let (expected, found) = (parameter.saved_shape.clone(), shape.to_vec());
                mismatches.push(Mismatch::Shape { name: name(), expected, found });
            }
            if let Some(expected) = parameter.dtype.filter(|expected| expected != dtype) {
                mismatches.push(Mismatch::Dtype { name: name(), expected, found: *dtype });
            }
        }
        let extra = found.keys().filter(|name| !self.all.contains_key(**name));
        mismatches.extend(extra.map(|name| Mismatch::Extra { name: (*name).into() }));
        if mismatches.is_empty() {
            Ok(())
        } else {
            Err(ErrorKind::Mismatches { mismatches }.into())
        }
    }

    /// Compares the record of an optimizer with this module, whose record of the same epoch has
    /// been [compared](Parameters::check). Then gives it the ids of this module.
    ///
    /// # Errors
    ///
    /// Those of [`state::new_ids`].
    pub(super) fn adapt_optimizer(
        &self,
        optimizer: &mut RecordFile,
        model: &RecordFile,
    ) -> Result<()> {
        optimizer.new_ids = state::new_ids(self, &model.content(), &optimizer.content())?;
        Ok(())
    }

    /// Gives the record of a module, which has been [compared](Parameters::check), the ids of this
    /// module.
    pub(super) fn adapt_model(&self, model: &mut RecordFile) {
        let ids = self.all.iter().map(|(path, parameter)| (path.clone(), parameter.id));
        model.ids = Ids::OfTensors(ids.collect());
    }

    fn add<const D: usize, K: Basic>(
        &mut self,
        kind: Kind,
        param: &Param<Tensor<D, K>>,
        is_column: impl FnOnce() -> bool,
    ) where
        Tensor<D, K>: BurnParameter,
    {
        // burn compares with this shape, too.
        let saved_shape = param.lazy_shape().to_vec();
        let mut shape = saved_shape.clone();
        let dtype = if param.is_initialized() {
            param.dtype()
        } else {
            // A parameter without a value declares the shape that it is saved in.
            if D == 2 && shape[0] != shape[1] && is_column() {
                shape.reverse();
            }
            kind.default_dtype(&param.lazy_device())
        };
        let (id, dtype) = (param.id.val(), dtype::to_file(dtype).ok());
        let parameter = Parameter { id, saved_shape, shape, dtype };
        self.all.insert(self.path.join("."), parameter);
    }
}

/// Paths are made as burn's records make them.
impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(Kind::Float, param, || is_column(param));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(Kind::Int, param, || false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(Kind::Bool, param, || false);
    }
}
