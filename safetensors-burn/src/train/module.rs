//! The module that records are restored for.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, Parameter};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor};
use safetensors_core::error::Mismatch;
use safetensors_core::{ErrorKind, Result};

use super::names::Ids;
use super::record::RecordFile;

/// The parameters of a module.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    path: Vec<String>,
    /// By the path: the id, and the shape in a record.
    all: BTreeMap<String, (u64, Vec<usize>)>,
}

impl Parameters {
    pub(super) fn of(module: &impl Module) -> Self {
        let mut parameters = Self::default();
        module.visit(&mut parameters);
        parameters
    }

    /// Compares the record of a module, or that of an optimizer. Then gives it the ids of this
    /// module.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`] with all differences.
    pub(super) fn adapt(&self, record: &mut RecordFile, is_module: bool) -> Result<()> {
        let mut mismatches = Vec::new();
        if is_module {
            self.compare(record, &mut mismatches);
        } else if let Ids::OfPaths(ids) = &record.ids {
            let unknown = ids.keys().filter(|path| !self.all.contains_key(*path));
            mismatches.extend(unknown.map(|path| Mismatch::Extra { name: path.clone() }));
        }
        if !mismatches.is_empty() {
            return Err(ErrorKind::Mismatches { mismatches }.into());
        }
        match &mut record.ids {
            Ids::OfTensors(ids) if is_module => {
                ids.extend(self.all.iter().map(|(path, (id, _))| (path.clone(), *id)));
            }
            // Tensors that belong to no parameter have no ids.
            Ids::OfTensors(_) => {}
            Ids::OfPaths(ids) => {
                for (path, id) in ids {
                    *id = self.all.get(path).map_or(*id, |(id, _)| *id);
                }
            }
        }
        Ok(())
    }

    fn compare(&self, record: &RecordFile, mismatches: &mut Vec<Mismatch>) {
        let found: BTreeMap<&str, &[usize]> =
            record.tensors().map(|tensor| (tensor.name(), tensor.shape())).collect();
        for (path, (_, expected)) in &self.all {
            let name = path.clone();
            match found.get(path.as_str()) {
                None => mismatches.push(Mismatch::Missing { name }),
                Some(found) if found != expected => {
                    let (expected, found) = (expected.clone(), found.to_vec());
                    mismatches.push(Mismatch::Shape { name, expected, found });
                }
                Some(_) => {}
            }
        }
        let extra = found.keys().filter(|name| !self.all.contains_key(**name));
        mismatches.extend(extra.map(|name| Mismatch::Extra { name: (*name).into() }));
    }

    fn add<const D: usize, K: Basic>(&mut self, param: &Param<Tensor<D, K>>)
    where
        Tensor<D, K>: Parameter,
    {
        // burn compares with this shape, too.
        let shape = param.lazy_shape().to_vec();
        self.all.insert(self.path.join("."), (param.id.val(), shape));
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
        self.add(param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param);
    }
}
