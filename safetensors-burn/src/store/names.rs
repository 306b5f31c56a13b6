//! [`Naming`]: which names of a file become which names of a module.

use regex::Regex;

use super::indices::Renumbering;

/// The rules of a store for names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naming {
    /// The start of the names of the module's tensors in the file, with the dot.
    pub(crate) prefix: String,
    /// Patterns and replacements. Each applies to the result of the one before it.
    pub(crate) rules: Vec<(Regex, String)>,
    /// Whether the entries of lists get consecutive numbers when they are loaded.
    pub(crate) map_indices: bool,
    /// The lists that keep their numbers.
    pub(crate) keep_indices: Vec<Regex>,
}

impl Naming {
    /// Returns the name in the file for a name of the module.
    pub(crate) fn in_file(&self, of_module: &str) -> String {
        self.prefix.clone() + &self.rename(of_module)
    }

    /// Returns `true` if a tensor of this name in the file belongs to the module.
    pub(crate) fn has(&self, in_file: &str) -> bool {
        in_file.starts_with(&self.prefix)
    }

    /// Returns the names that a module uses, for these names of a file that belong to it, in the
    /// same order.
    pub(crate) fn of_module<'a>(&self, in_file: impl Iterator<Item = &'a str>) -> Vec<String> {
        let own = in_file.map(|name| name.strip_prefix(&*self.prefix).unwrap_or(name));
        let mut names: Vec<String> = own.map(|name| self.rename(name)).collect();
        if self.map_indices {
            let numbers = Renumbering::of(names.iter().map(String::as_str), |list| {
                self.keep_indices.iter().any(|pattern| pattern.is_match(list))
            });
            names.iter_mut().for_each(|name| *name = numbers.apply(name));
        }
        names
    }

    /// Returns the name that the rules make of a name.
    fn rename(&self, name: &str) -> String {
        self.rules.iter().fold(name.to_owned(), |name, (pattern, to)| {
            pattern.replace_all(&name, to).into_owned()
        })
    }
}
