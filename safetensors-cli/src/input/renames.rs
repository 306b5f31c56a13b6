//! [`Renames`]: the values of `--rename`.

use regex::Regex;

use crate::terminal::report::wrong_usage;

/// Regular expressions, each with its replacement.
#[derive(Debug)]
pub(crate) struct Renames<'a>(Vec<(Regex, &'a str)>);

impl<'a> Renames<'a> {
    /// Compiles the values of the option: a regular expression and its replacement in turns.
    pub(crate) fn new(values: &'a [String]) -> anyhow::Result<Self> {
        let pairs = values.as_chunks::<2>().0.iter();
        let compile = |[regex, new]: &'a [String; 2]| {
            let regex = Regex::new(regex);
            Ok((regex.map_err(|error| wrong_usage(format!("--rename: {error}")))?, new.as_str()))
        };
        Ok(Self(pairs.map(compile).collect::<anyhow::Result<_>>()?))
    }

    /// The new name.
    pub(crate) fn apply(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for (regex, new) in &self.0 {
            name = regex.replace_all(&name, *new).into_owned();
        }
        name
    }
}
