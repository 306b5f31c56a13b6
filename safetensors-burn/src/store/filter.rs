//! [`Filter`]: selects the parameters of a module that are loaded or saved.

use burn_store::PathFilter;
use regex::Regex;
use safetensors_core::{Error, Result};

use super::location::Location;
use crate::{Burn, StoreError};

/// burn's path filter, and regular expressions. A parameter is selected if any of them matches, or
/// if none is given.
///
/// The expressions are kept apart, because `PathFilter` has them only with a feature of burn-store
/// that depends on the `safetensors` crate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) paths: PathFilter,
    patterns: Vec<Regex>,
}

impl Filter {
    pub(crate) fn add_pattern(&mut self, pattern: &str) -> Result<()> {
        self.patterns.push(compile(pattern)?);
        Ok(())
    }

    pub(crate) fn matches(&self, location: &Location) -> bool {
        if self.paths.is_empty() && self.patterns.is_empty() {
            return true;
        }
        let path = location.path();
        self.patterns.iter().any(|pattern| pattern.is_match(&path))
            || self.paths.matches_with_container_path_str(&path, &location.containers().join("."))
    }
}

/// Compiles a pattern that the caller gave.
pub(crate) fn compile(pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| Error::framework::<Burn>(StoreError::Pattern(error)))
}
