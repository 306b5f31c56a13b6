//! [`Naming`]: the rules of a store for names.

use regex::Regex;

use super::indices::Renumbering;

#[derive(Clone, Debug, Default)]
pub(crate) struct Naming {
    pub(crate) prefix: String,
    /// Rules that each apply to the result of the one before.
    pub(crate) rules: Vec<(Regex, String)>,
    pub(crate) map_indices: bool,
    pub(crate) keep_indices: Vec<Regex>,
}

impl Naming {
    pub(crate) fn in_file(&self, of_module: &str) -> String {
        self.prefix.clone() + &self.rename(of_module)
    }

    pub(crate) fn has(&self, in_file: &str) -> bool {
        in_file.starts_with(&self.prefix)
    }

    /// Returns the module's names in the same order.
    pub(crate) fn of_module<'a>(&self, in_file: impl Iterator<Item = &'a str>) -> Vec<String> {
        let own = in_file.map(|name| name.strip_prefix(&*self.prefix).unwrap_or(name));
        let mut names: Vec<String> = own.map(|name| self.rename(name)).collect();
        if self.map_indices {
            let numbers = Renumbering::count(names.iter().map(String::as_str), |list| {
                self.keep_indices.iter().any(|pattern| pattern.is_match(list))
            });
            names.iter_mut().for_each(|name| *name = numbers.apply(name));
        }
        names
    }

    fn rename(&self, name: &str) -> String {
        self.rules.iter().fold(name.to_owned(), |name, (pattern, to)| {
            pattern.replace_all(&name, to).into_owned()
        })
    }
}
