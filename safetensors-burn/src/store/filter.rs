//! [`Filter`]: selects the parameters of a module that are loaded or saved.

use burn_store::PathFilter;
use regex::Regex;

/// Selects parameters by any of its filters, or all.
// `PathFilter` has regular expressions only with a feature of burn-store that depends on the
// `safetensors` crate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) paths: PathFilter,
    pub(crate) patterns: Vec<Regex>,
}

impl Filter {
    /// Selects by the name and the types that contain the parameter, outermost first.
    pub(crate) fn matches(&self, name: &str, containers: &[String]) -> bool {
        if self.paths.is_empty() && self.patterns.is_empty() {
            return true;
        }
        self.patterns.iter().any(|pattern| pattern.is_match(name))
            || self.paths.matches_with_container_path_str(name, &containers.join("."))
    }
}
