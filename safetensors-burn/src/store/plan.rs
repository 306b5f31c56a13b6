//! [`LoadPlan`]: matches tensors to parameters and checks them, before any tensor is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn::tensor::TensorData;
use burn_store::{ApplyError, ApplyResult, ModuleAdapter};
use safetensors_core::framework::Framework;
use safetensors_core::{Dtype, Error, ErrorKind, LazyTensor, LoadOptions, Result};

use super::catalog::Catalog;
use super::filter::Filter;
use super::pack::{self, PackTensor, Slot};
use super::parameters::{Kind, Parameter};
use crate::Burn;

/// The tensors that will be loaded, and the result that will be returned.
pub(crate) struct LoadPlan {
    matches: Vec<Match>,
    pub(crate) result: ApplyResult,
    /// The first error of `result`, with the path of the parameter and the file of the tensor.
    pub(crate) mismatch: Option<Error>,
}

/// A tensor and the parameter of the same kind and shape that it goes into.
struct Match {
    /// The parameter's path in the module.
    path: String,
    /// The tensor's name in the catalog.
    name: String,
    kind: Kind,
    slot: Slot,
    tensor: PackTensor,
}

impl LoadPlan {
    /// Finds the tensor of each parameter by the path of the parameter. If there is none, finds it
    /// by the name that the adapter has for the parameter.
    ///
    /// A parameter that the filter leaves out is neither loaded nor missing.
    pub(crate) fn new(
        parameters: &[Parameter],
        catalog: &Catalog,
        filter: &Filter,
        adapter: &dyn ModuleAdapter,
    ) -> Self {
        let mut plan = Self {
            matches: Vec::new(),
            result: ApplyResult {
                applied: vec![],
                skipped: vec![],
                missing: vec![],
                unused: vec![],
                errors: vec![],
            },
            mismatch: None,
        };
        let mut used = BTreeSet::new();
        for Parameter { location, kind, shape } in parameters {
            let path = location.path();
            let find = |name: &str| catalog.tensors().get_key_value(name);
            let found = find(&path).or_else(|| find(&pack::alternative_name(location, adapter)?));
            used.extend(found.map(|(name, _)| name.as_str()));
            if !filter.matches(location) {
                plan.result.skipped.push(path);
                continue;
            }
            let Some((name, source)) = found else {
                plan.result.missing.push((path, location.containers().join(".")));
                continue;
            };
            let slot = Slot::default();
            let tensor = pack::for_parameter(source, slot.clone(), location, adapter);
            let (dtype, found) = pack::description(&tensor);
            let error = if !kind.accepts(dtype) {
                ApplyError::DTypeMismatch {
                    path: path.clone(),
                    expected: kind.example(),
                    found: dtype,
                }
            } else if found != shape {
                ApplyError::ShapeMismatch {
                    path: path.clone(),
                    expected: shape.clone(),
                    found: found.clone(),
                }
            } else {
                plan.result.applied.push(path.clone());
                plan.matches.push(Match { path, name: name.clone(), kind: *kind, slot, tensor });
                continue;
            };
            plan.mismatch.get_or_insert_with(|| {
                catalog.locate(name, Error::framework::<Burn>(error.clone()).in_tensor(&path))
            });
            plan.result.errors.push(error);
        }
        plan.result.skipped.sort_unstable();
        plan.result.missing.sort_unstable();
        plan.result.unused = catalog.unused(&used);
        plan
    }

    /// Reads the tensors in parallel, each once, and adapts them. `options` must be made for burn.
    /// Returns the data by the path of the parameter.
    pub(crate) fn read(
        self,
        catalog: &Catalog,
        options: &LoadOptions,
    ) -> Result<(HashMap<String, TensorData>, ApplyResult)> {
        let tensors = self
            .matches
            .iter()
            .map(|found| catalog.tensor(&found.name))
            .collect::<Result<Vec<_>>>()?;
        // Several parameters may share one tensor under different names. It is read only once.
        let mut slots: BTreeMap<&str, (LazyTensor<'_, _>, Vec<&Slot>)> = BTreeMap::new();
        for (found, tensor) in self.matches.iter().zip(&tensors) {
            slots.entry(tensor.name()).or_insert_with(|| (*tensor, Vec::new())).1.push(&found.slot);
        }
        let (once, slots): (Vec<_>, Vec<_>) = slots.into_values().unzip();
        let bufs = catalog.read(&once, options)?;
        for ((tensor, slots), buf) in once.iter().zip(slots).zip(bufs) {
            let data = Burn::from_exact(buf, &()).map_err(|error| tensor.locate(error))?;
            if let Some((last, others)) = slots.split_last() {
                // The last slot takes the data itself, so an unshared tensor is not copied.
                others.iter().for_each(|slot| slot.fill(data.clone()));
                last.fill(data);
            }
        }
        let data = self.matches.into_iter().zip(&tensors).map(
            |(Match { path, tensor, kind, .. }, source)| {
                let data = pack::into_data(tensor)
                    .and_then(|data| check(kind, data))
                    .map_err(|error| source.locate(error))?;
                Ok((path, data))
            },
        );
        Ok((data.collect::<Result<_>>()?, self.result))
    }
}

/// Returns the data if a parameter of this kind can take it. Integers for a boolean parameter must
/// all be 0 or 1.
fn check(kind: Kind, data: TensorData) -> Result<TensorData> {
    if kind == Kind::Bool && !data.dtype().is_bool() {
        let other = data.iter::<u64>().enumerate().find(|&(_, value)| value > 1);
        if let Some((index, value)) = other {
            let kind = ErrorKind::DoesNotFit {
                index: index as u64,
                value: value.to_string(),
                to: Dtype::BOOL,
            };
            return Err(kind.into());
        }
    }
    Ok(data)
}
