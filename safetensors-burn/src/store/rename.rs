//! [`KeyRemapper`]: rules that change tensor names.

use regex::Regex;
use safetensors_core::{Error, Result};

use crate::{Burn, StoreError};

/// Patterns, and what replaces their matches in the names of tensors. Each rule applies to the
/// result of the rule before it.
///
/// It has the methods of burn-store's type of the same name, which exists only with a feature that
/// depends on the `safetensors` crate. burn-store's converts into this one by its public field:
/// `store.remap(theirs.patterns)`.
///
/// ```
/// use safetensors_burn::{CheckpointStore, KeyRemapper};
///
/// let rules = KeyRemapper::new()
///     .add_pattern(r"^pytorch\.(.*)", "burn.$1")?
///     .add_pattern(r"\.gamma$", ".weight")?;
/// assert_eq!(rules.rename("pytorch.norm.gamma"), "burn.norm.weight");
/// let store = CheckpointStore::from_file("model.safetensors").remap(rules);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyRemapper(Vec<(Regex, String)>);

impl KeyRemapper {
    /// No rules: each name stays as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule. The replacement may refer to groups of the pattern (`$1`).
    ///
    /// # Errors
    ///
    /// [`StoreError::Pattern`](crate::StoreError::Pattern) if the pattern is not a regular
    /// expression.
    pub fn add_pattern(
        mut self,
        pattern: impl AsRef<str>,
        replacement: impl Into<String>,
    ) -> Result<Self> {
        let pattern = Regex::new(pattern.as_ref());
        let pattern =
            pattern.map_err(|error| Error::framework::<Burn>(StoreError::Pattern(error)))?;
        self.0.push((pattern, replacement.into()));
        Ok(self)
    }

    /// Makes rules of pairs of a pattern and a replacement.
    ///
    /// # Errors
    ///
    /// The errors of [`add_pattern`](KeyRemapper::add_pattern).
    pub fn from_patterns(
        patterns: impl IntoIterator<Item = (impl AsRef<str>, impl Into<String>)>,
    ) -> Result<Self> {
        patterns.into_iter().try_fold(Self::new(), |rules, (pattern, replacement)| {
            rules.add_pattern(pattern, replacement)
        })
    }

    /// Makes rules of patterns that are compiled already.
    pub fn from_compiled_patterns(patterns: Vec<(Regex, String)>) -> Self {
        Self(patterns)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that the rules make of a name.
    pub fn rename(&self, name: &str) -> String {
        self.0.iter().fold(name.to_owned(), |name, (pattern, to)| {
            pattern.replace_all(&name, to).into_owned()
        })
    }

    /// Adds a rule whose pattern is compiled.
    pub(crate) fn push(&mut self, pattern: Regex, replacement: String) {
        self.0.push((pattern, replacement));
    }
}

impl From<Vec<(Regex, String)>> for KeyRemapper {
    fn from(patterns: Vec<(Regex, String)>) -> Self {
        Self::from_compiled_patterns(patterns)
    }
}
