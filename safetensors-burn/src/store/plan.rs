//! [`LoadPlan`]: matches tensors to parameters and checks them, before any tensor is read.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::ParamId;
use burn_store::{ApplyError, ApplyResult, ModuleAdapter};
use safetensors_core::Error;

use super::catalog::Catalog;
use super::filter::Filter;
use super::pack::{self, PackTensor, Slot};
use super::parameters::{Kind, Parameter};
use crate::{Burn, StoreError};

/// The tensors that will be loaded, and the result that will be returned.
pub(crate) struct LoadPlan {
    pub(crate) matches: Vec<Match>,
    pub(crate) result: ApplyResult,
    /// The first error of `result`, with the path of the parameter and the file of the tensor.
    pub(crate) mismatch: Option<Error>,
}

/// A tensor and the parameter of the same kind and shape that it goes into.
pub(crate) struct Match {
    /// The parameter's path in the module.
    pub(crate) path: String,
    /// The tensor's name in the catalog.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    own_id: ParamId,
    /// The id that the parameter gets; `None` if it keeps its own.
    pub(crate) new_id: Option<ParamId>,
    pub(crate) slot: Slot,
    pub(crate) tensor: PackTensor,
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
        // The ids of the parameters that are not loaded.
        let mut kept = BTreeSet::new();
        for parameter in parameters {
            let (location, path) = (&parameter.location, parameter.location.path());
            let find = |name: &str| catalog.tensors().get_key_value(name);
            let found = find(&path).or_else(|| find(&pack::alternative_name(location, adapter)?));
            used.extend(found.map(|(name, _)| name.as_str()));
            let loaded = if !filter.matches(&path, location.containers()) {
                plan.result.skipped.push(path);
                false
            } else if let Some((name, source)) = found {
                plan.add(parameter, path, catalog, name, source, adapter)
            } else {
                plan.result.missing.push((path, location.containers().join(".")));
                false
            };
            if !loaded {
                kept.insert(parameter.id);
            }
        }
        plan.keep_ids_apart(&kept);
        plan.result.skipped.sort_unstable();
        plan.result.missing.sort_unstable();
        plan.result.unused = catalog.unused(&used);
        plan
    }

    /// Adds a tensor and its parameter, or the reason why the tensor does not fit it. Returns
    /// whether it fits.
    fn add(
        &mut self,
        parameter: &Parameter,
        path: String,
        catalog: &Catalog,
        name: &str,
        source: &PackTensor,
        adapter: &dyn ModuleAdapter,
    ) -> bool {
        let slot = Slot::default();
        let tensor = pack::for_parameter(source, slot.clone(), &parameter.location, adapter);
        let error = match misfit(parameter, &path, &tensor) {
            None => {
                self.result.applied.push(path.clone());
                self.matches.push(Match {
                    path,
                    name: name.to_owned(),
                    kind: parameter.kind,
                    own_id: parameter.id,
                    new_id: pack::saved_id(source),
                    slot,
                    tensor,
                });
                return true;
            }
            Some(error) => error,
        };
        self.mismatch.get_or_insert_with(|| {
            let error = match transposed(&error, source) {
                Some(hint) => Error::framework::<Burn>(hint),
                None => Error::framework::<Burn>(error.clone()),
            };
            catalog.locate(name, error.in_tensor(&path))
        });
        self.result.errors.push(error);
        false
    }

    /// Drops new ids that would give one id to two parameters that have two ids now. burn finds
    /// gradients and the state of an optimizer by the id, so it would mix them up.
    fn keep_ids_apart(&mut self, of_others: &BTreeSet<ParamId>) {
        let mut given = BTreeMap::new();
        for found in &mut self.matches {
            found.new_id = found.new_id.filter(|id| {
                !of_others.contains(id) && *given.entry(*id).or_insert(found.own_id) == found.own_id
            });
        }
    }
}

/// Why a tensor cannot become the value of a parameter.
fn misfit(parameter: &Parameter, path: &str, tensor: &PackTensor) -> Option<ApplyError> {
    let (dtype, shape) = pack::description(tensor);
    if !parameter.kind.accepts(dtype) {
        return Some(ApplyError::DTypeMismatch {
            path: path.to_owned(),
            expected: parameter.dtype,
            found: dtype,
        });
    }
    (*shape != parameter.shape).then(|| ApplyError::ShapeMismatch {
        path: path.to_owned(),
        expected: parameter.shape.clone(),
        found: shape.clone(),
    })
}

/// A better error for a matrix that would fit if it were transposed. `source` is the tensor in the
/// file, before the adapter.
fn transposed(error: &ApplyError, source: &PackTensor) -> Option<StoreError> {
    let ApplyError::ShapeMismatch { expected, found, .. } = error else { return None };
    let (&[rows, columns], &[b, a]) = (&expected[..], &found[..]) else { return None };
    (rows == a && columns == b).then(|| StoreError::Transposed {
        expected: [rows, columns],
        found: [b, a],
        is_adapted: pack::description(source).1 != found,
    })
}
