//! [`Rules`]: rules that change tensor names.

use regex::Regex;

/// Patterns and replacements for the names of tensors. Each rule applies to the result of the rule
/// before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(pub(crate) Vec<(Regex, String)>);

impl Rules {
    /// Returns the name that the rules make of a name.
    pub(crate) fn rename(&self, name: &str) -> String {
        self.0.iter().fold(name.to_owned(), |name, (pattern, to)| {
            pattern.replace_all(&name, to).into_owned()
        })
    }
}
