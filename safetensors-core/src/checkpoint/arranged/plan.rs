//! [`ArrangedPlan`]: the names that arranged tensors use up, and the places of the tensors.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::value::Value;
use crate::checkpoint::{Checkpoint, Strided};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::METADATA_KEY;

/// The arranged tensors.
#[derive(Default)]
pub(super) struct ArrangedPlan {
    pub(super) tensors: Vec<Strided>,
    /// By the name of a stored tensor, the numbers of the tensors that take its place.
    pub(super) instead: HashMap<String, Vec<usize>>,
    /// The names that are used up.
    used: HashSet<String>,
}

impl ArrangedPlan {
    /// Adds a tensor. `used` has the names that it is made of.
    pub(super) fn add<S>(
        &mut self,
        name: &str,
        value: Value<'_, S>,
        used: Vec<&str>,
    ) -> Result<()> {
        let Value { first, dtype, shape, pieces } = value;
        let tensor = Strided::new(name, dtype, shape, &pieces);
        let tensor = tensor.map_err(|error| first.locate(error.in_tensor(name)))?;
        self.instead.entry(first.name().to_owned()).or_default().push(self.tensors.len());
        self.tensors.push(tensor);
        self.used.extend(used.into_iter().map(str::to_owned));
        Ok(())
    }

    /// Adds the tensors with other names that stay. Returns the aliases to change: the new names of
    /// their tensors, `None` for one that is gone.
    pub(super) fn finish<S>(
        &mut self,
        checkpoint: &Checkpoint<S>,
    ) -> Result<BTreeMap<String, Option<String>>> {
        self.check_names(checkpoint)?;
        let mut aliases = BTreeMap::new();
        let used: Vec<_> = self.used.iter().filter_map(|name| checkpoint.get(name)).collect();
        let mut seen = HashSet::new();
        for tensor in used.into_iter().filter(|tensor| seen.insert(tensor.name())) {
            let others = || checkpoint.catalog.aliases_of(tensor.name());
            let mut names = std::iter::once(tensor.name()).chain(others());
            let kept = names.find(|name| !self.used.contains(*name));
            for alias in others() {
                let name = kept.filter(|kept| *kept != alias && !self.used.contains(alias));
                aliases.insert(alias.to_owned(), name.map(str::to_owned));
            }
            let instead = self.instead.entry(tensor.name().to_owned()).or_default();
            if let Some(name) = kept {
                let Value { dtype, shape, pieces, .. } = Value::new(tensor);
                instead.insert(0, self.tensors.len());
                self.tensors.push(Strided::new(name, dtype, shape, &pieces)?);
            }
        }
        Ok(aliases)
    }

    /// Checks that no name is given twice, nor stays the name of a stored tensor.
    fn check_names<S>(&self, checkpoint: &Checkpoint<S>) -> Result<()> {
        let mut names = HashSet::new();
        for name in self.tensors.iter().map(|tensor| &*tensor.name) {
            let stays = checkpoint.get(name).is_some() && !self.used.contains(name);
            let kind = match name {
                METADATA_KEY => ErrorKind::ReservedName,
                _ if stays || !names.insert(name) => ErrorKind::DuplicateTensor,
                _ => continue,
            };
            return Err(checkpoint.in_first_path(Error::from(kind).in_tensor(name)));
        }
        Ok(())
    }
}
