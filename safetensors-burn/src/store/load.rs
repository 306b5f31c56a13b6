//! Loads a module.

use std::sync::Arc;

use burn_store::{ApplyResult, ModuleSnapshot};
use safetensors_core::framework::Quoted;
use safetensors_core::{Error, ErrorKind, Result};

use super::CheckpointStore;
use super::adopt::adopt;
use super::catalog::Catalog;
use super::pack;
use super::parameters::{Parameter, parameters};
use super::plan::LoadPlan;
use super::read::{read, steps};
use crate::StoreError;

impl CheckpointStore {
    pub(super) fn load_module(&mut self, module: &mut impl ModuleSnapshot) -> Result<ApplyResult> {
        let checked = pack::check_adapter(&*self.from_adapter, self.layout);
        checked.map_err(|error| self.place.locate(error))?;
        let catalog = Arc::clone(self.catalog()?);
        let parameters = parameters(module, self.skip_enum_variants, self.layout);
        let LoadPlan { matches, result, .. } = self.plan(&parameters, &catalog)?;
        let total = matches.len();
        let mut loaded = 0;
        for step in steps(matches, &catalog, self.max_extra_memory)? {
            let count = step.len();
            let replaced = read(step, &catalog).and_then(|values| {
                let replaced = adopt(module, values, self.skip_enum_variants);
                replaced.map_err(|error| self.place.locate(error))
            });
            *module = replaced.map_err(|error| partly_loaded(error, loaded, total))?;
            loaded += count;
        }
        Ok(result)
    }

    /// Fails if nothing is selected, even if parameters may be missing.
    fn plan(&self, parameters: &[Parameter], catalog: &Catalog) -> Result<LoadPlan> {
        let mut plan = LoadPlan::new(parameters, catalog, &self.filter, &*self.from_adapter);
        if !parameters.is_empty() {
            self.refuse_nothing(&plan, parameters.len(), catalog)?;
        }
        self.check(&mut plan, catalog)?;
        Ok(plan)
    }

    fn refuse_nothing(&self, plan: &LoadPlan, parameters: usize, catalog: &Catalog) -> Result<()> {
        let nothing = |found| Error::from(ErrorKind::NothingSelected { found });
        let error = if plan.result.skipped.len() == parameters {
            nothing(parameters).advise("on loading, filters see the paths in the module")
        } else if catalog.tensors().is_empty() && !self.naming.prefix.is_empty() {
            let prefix = Quoted(&self.naming.prefix);
            nothing(catalog.len()).advise(format!("no name in the file begins with {prefix}"))
        } else {
            return Ok(());
        };
        Err(self.place.locate(error))
    }

    fn check(&self, plan: &mut LoadPlan, catalog: &Catalog) -> Result<()> {
        if let Some(error) = plan.refused.take() {
            return Err(error);
        }
        if !plan.missing.is_empty()
            && let Some(error) = catalog.stored_otherwise(&plan.missing, self.allow_partial)?
        {
            return Err(error);
        }
        if let Some(error) = plan.mismatch.take().filter(|_| self.validate) {
            return Err(error);
        }
        if let Some(error) = plan.other_parts.take() {
            return Err(error);
        }
        if !self.allow_partial && !plan.missing.is_empty() {
            let names = std::mem::take(&mut plan.missing).into_iter().collect();
            return Err(self.place.locate(StoreError::Missing { names }.into()));
        }
        Ok(())
    }
}

fn partly_loaded(error: Error, loaded: usize, total: usize) -> Error {
    if loaded == 0 {
        return error;
    }
    let tensor = error.tensor().map(str::to_owned);
    let file = error.file().map(str::to_owned);
    let source = Box::new(error);
    let mut error = Error::from(StoreError::PartlyLoaded { loaded, total, source });
    if let Some(tensor) = tensor {
        error = error.in_tensor(&tensor);
    }
    match file {
        Some(file) => error.in_file(file),
        None => error,
    }
}
