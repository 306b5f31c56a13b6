//! [`Filter`]: selects the parameters of a module that are loaded or saved.

use burn_store::PathFilter;
use regex::Regex;

/// burn's path filter, and regular expressions. A parameter is selected if any of them matches, or
/// if none is given.
///
/// The expressions are kept apart, because `PathFilter` has them only with a feature of burn-store
/// that depends on the `safetensors` crate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) paths: PathFilter,
    pub(crate) patterns: Vec<Regex>,
}

impl Filter {
    /// Returns `true` if a parameter is selected: by its name, and by the types that contain it,
    /// outermost first.
    pub(crate) fn matches(&self, name: &str, containers: &[String]) -> bool {
        if self.paths.is_empty() && self.patterns.is_empty() {
            return true;
        }
        self.patterns.iter().any(|pattern| pattern.is_match(name))
            || self.paths.matches_with_container_path_str(name, &containers.join("."))
    }
}
