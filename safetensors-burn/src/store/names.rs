//! [`Naming`]: which names of a file become which names of a module.

use regex::Regex;

use super::indices::Renumbering;
use super::rename::Rules;

/// The rules of a store for names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naming {
    pub(crate) rules: Rules,
    /// Whether the entries of lists get consecutive numbers when they are loaded.
    pub(crate) map_indices: bool,
    /// The lists that keep their numbers.
    pub(crate) keep_indices: Vec<Regex>,
}

impl Naming {
    /// The names that a module uses, for these names of a file, in the same order.
    pub(crate) fn of_module<'a>(&self, in_file: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut names: Vec<String> = in_file.map(|name| self.rules.rename(name)).collect();
        if self.map_indices {
            let keep = |list: &str| self.keep_indices.iter().any(|pattern| pattern.is_match(list));
            let numbers = Renumbering::of(names.iter().map(String::as_str), keep);
            names.iter_mut().for_each(|name| *name = numbers.apply(name));
        }
        names
    }
}
