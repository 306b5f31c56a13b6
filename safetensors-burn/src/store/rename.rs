//! [`Renames`]: rules that change tensor names.

use regex::Regex;
use safetensors_core::Result;

use super::filter::compile;

/// Patterns and the replacements of their matches. Each rule applies to the result of the rule
/// before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renames(Vec<(Regex, String)>);

impl Renames {
    pub(crate) fn add(&mut self, pattern: &str, replacement: String) -> Result<()> {
        self.0.push((compile(pattern)?, replacement));
        Ok(())
    }

    pub(crate) fn apply(&self, name: &str) -> String {
        self.0.iter().fold(name.to_owned(), |name, (pattern, to)| {
            pattern.replace_all(&name, to).into_owned()
        })
    }
}
