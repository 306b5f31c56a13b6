//! [`LoadPlan`]: matches tensors to parameters and checks them, before any tensor is read.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::ParamId;
use burn_store::{ApplyError, ApplyResult, ModuleAdapter};
use safetensors_core::Error;

use super::catalog::Catalog;
use super::filter::Filter;
use super::pack::{self, AheadBytes, PackTensor};
use super::parameters::{Kind, Parameter};
use crate::pytorch::{StoredParameter, without_parameter};
use crate::{Burn, StoreError};

pub(crate) struct LoadPlan {
    pub(crate) matches: Vec<Match>,
    pub(crate) result: ApplyResult,
    /// The first error of `result`, with parameter and file.
    pub(crate) mismatch: Option<Error>,
    /// The error for codes of a quantised weight.
    pub(crate) refused: Option<Error>,
    pub(crate) missing: BTreeSet<String>,
    /// The error for a tensor with parts that the module lacks.
    pub(crate) other_parts: Option<Error>,
}

pub(crate) struct Match {
    pub(crate) path: String,
    /// The tensor's name in the catalog.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    own_id: ParamId,
    /// `None` if the parameter keeps its id.
    pub(crate) new_id: Option<ParamId>,
    pub(crate) slot: AheadBytes,
    pub(crate) tensor: PackTensor,
    /// Whether the parameter has a copy of data.
    pub(crate) is_copied: bool,
}

struct MatchedTensor<'c> {
    stored: StoredParameter,
    name: &'c str,
    source: &'c PackTensor,
}

impl<'c> MatchedTensor<'c> {
    /// Finds a tensor by the layout's names, or by the adapter's.
    fn find(
        parameter: &Parameter,
        catalog: &'c Catalog,
        adapter: &dyn ModuleAdapter,
    ) -> Option<Self> {
        let found = parameter.stored_as.iter().find_map(|stored| Self::at(stored, catalog));
        found.or_else(|| {
            let name = pack::alternative_name(&parameter.location, adapter)?;
            Self::at(&StoredParameter::whole(name), catalog)
        })
    }

    fn at(stored: &StoredParameter, catalog: &'c Catalog) -> Option<Self> {
        let (name, source) = catalog.tensors().get_key_value(&stored.tensor)?;
        Some(Self { stored: stored.clone(), name, source })
    }
}

#[derive(Default)]
struct Parts<'c>(BTreeMap<&'c str, (usize, Vec<String>)>);

impl<'c> Parts<'c> {
    fn add(&mut self, found: &MatchedTensor<'c>, path: &str) {
        if found.stored.is_part() {
            let parts = self.0.entry(found.name).or_insert((found.stored.parts, vec![]));
            parts.1.push(path.to_owned());
        }
    }

    /// Fails for a tensor with parts that the module lacks.
    fn incomplete(self, catalog: &Catalog) -> Option<Error> {
        let mut parts = self.0.into_iter();
        let (name, (expected, found)) =
            parts.find(|(_, (expected, found))| found.len() != *expected)?;
        let error = Error::from(StoreError::OtherParts { expected, found });
        Some(catalog.locate(name, error.in_tensor(name)))
    }
}

impl LoadPlan {
    pub(crate) fn new(
        parameters: &[Parameter],
        catalog: &Catalog,
        filter: &Filter,
        adapter: &dyn ModuleAdapter,
    ) -> Self {
        let mut plan = Self::empty();
        let mut parts = Parts::default();
        let mut used = BTreeSet::new();
        // The ids of the parameters that are not loaded.
        let mut kept = BTreeSet::new();
        for parameter in parameters {
            let location = &parameter.location;
            let path = location.path();
            let found = MatchedTensor::find(parameter, catalog, adapter);
            if let Some(found) = &found {
                used.insert(found.name);
                parts.add(found, &path);
                // PyTorch has it next to the parameter, and no parameter is for it.
                let beside = without_parameter(location);
                let beside = beside.and_then(|name| catalog.tensors().get_key_value(&name));
                used.extend(beside.map(|(name, _)| name.as_str()));
            }
            let loaded = if !filter.matches(&path, location.containers()) {
                plan.result.skipped.push(path);
                false
            } else if let Some(found) = found {
                plan.add(parameter, catalog, &found, adapter)
            } else {
                plan.missing.extend(parameter.stored_as.first().map(|first| first.tensor.clone()));
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
        plan.other_parts = parts.incomplete(catalog);
        plan
    }

    fn empty() -> Self {
        Self {
            matches: Vec::new(),
            result: ApplyResult {
                applied: vec![],
                skipped: vec![],
                missing: vec![],
                unused: vec![],
                errors: vec![],
            },
            mismatch: None,
            refused: None,
            missing: BTreeSet::new(),
            other_parts: None,
        }
    }

    /// Returns whether the tensor fits the parameter.
    fn add(
        &mut self,
        parameter: &Parameter,
        catalog: &Catalog,
        MatchedTensor { stored, name, source }: &MatchedTensor<'_>,
        adapter: &dyn ModuleAdapter,
    ) -> bool {
        if self.refused.is_none() {
            self.refused = catalog.refused(name);
        }
        let location = &parameter.location;
        let slot = AheadBytes::default();
        let path = location.path();
        let tensor = pack::for_parameter(source, slot.clone(), location, stored, adapter);
        let error = match misfit(parameter, &path, source, stored, tensor) {
            Ok(tensor) => {
                let new_id = match stored.is_part() {
                    true => catalog.id_of_part(&path),
                    false => source.param_id.map(ParamId::from),
                };
                self.result.applied.push(path.clone());
                self.matches.push(Match {
                    path,
                    name: (*name).to_owned(),
                    kind: parameter.kind,
                    own_id: parameter.id,
                    new_id,
                    slot,
                    tensor,
                    is_copied: !stored.is_as_in_module(),
                });
                return true;
            }
            Err(error) => error,
        };
        self.mismatch.get_or_insert_with(|| {
            let error = match transposed(&error, source, stored) {
                Some(hint) => hint.into(),
                None => Error::framework::<Burn>(error.clone()),
            };
            // Only the adapter knows its own name for a tensor.
            let is_of_adapter = !parameter.stored_as.contains(stored);
            catalog.locate(name, error.in_tensor(if is_of_adapter { &path } else { name }))
        });
        self.result.errors.push(error);
        false
    }

    /// Drops new ids that would give one id to two parameters with different ids.
    // burn would mix up their states. A parameter without its new id keeps its own, so this repeats
    // until nothing is dropped.
    fn keep_ids_apart(&mut self, of_others: &BTreeSet<ParamId>) {
        loop {
            let stay = self.matches.iter().filter(|found| found.new_id.is_none());
            let mut kept = of_others.clone();
            kept.extend(stay.map(|found| found.own_id));
            let mut given = BTreeMap::new();
            let mut is_done = true;
            for found in &mut self.matches {
                let Some(id) = found.new_id else { continue };
                let is_free = id == found.own_id || !kept.contains(&id);
                if !is_free || *given.entry(id).or_insert(found.own_id) != found.own_id {
                    found.new_id = None;
                    is_done = false;
                }
            }
            if is_done {
                return;
            }
        }
    }
}

/// Returns why a tensor does not fit. `source` is the tensor in the file.
fn misfit(
    parameter: &Parameter,
    path: &str,
    source: &PackTensor,
    stored: &StoredParameter,
    tensor: Option<PackTensor>,
) -> Result<PackTensor, ApplyError> {
    let made = tensor.as_ref().unwrap_or(source);
    let path = path.to_owned();
    if !parameter.kind.accepts(made.dtype) {
        let found = made.dtype;
        return Err(ApplyError::DTypeMismatch { path, expected: parameter.dtype, found });
    }
    let mut expected = parameter.shape.clone();
    let mut found = made.shape.clone();
    if !stored.is_as_in_module() {
        expected = stored.shape_in_file(&expected);
        found = source.shape.clone();
    }
    tensor.filter(|tensor| tensor.shape == parameter.shape).ok_or(ApplyError::ShapeMismatch {
        path,
        expected,
        found,
    })
}

/// Returns a better error for a matrix that fits transposed. `source` is the tensor in the file.
fn transposed(
    error: &ApplyError,
    source: &PackTensor,
    stored: &StoredParameter,
) -> Option<StoreError> {
    let ApplyError::ShapeMismatch { expected, found, .. } = error else { return None };
    let (&[rows, columns], &[b, a]) = (&expected[..], &found[..]) else { return None };
    (rows == a && columns == b).then(|| StoreError::Transposed {
        expected: [rows, columns],
        found: [b, a],
        is_adapted: stored.transposed || source.shape != *found,
    })
}
