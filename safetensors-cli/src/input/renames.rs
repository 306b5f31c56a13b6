//! [`Renames`]: the values of `--rename`.

use std::borrow::Cow;

use regex::Regex;

use super::unmatched::unmatched;
use crate::terminal::report::wrong_usage;

#[derive(Debug)]
pub(crate) struct Renames<'a>(Vec<(Regex, &'a str)>);

impl<'a> Renames<'a> {
    /// Takes expressions and replacements in turns.
    pub(crate) fn new(values: &'a [String]) -> anyhow::Result<Self> {
        let pairs = values.as_chunks::<2>().0.iter();
        let compile = |[regex, new]: &'a [String; 2]| {
            let regex = Regex::new(regex);
            Ok((regex.map_err(|error| wrong_usage(format!("--rename: {error}")))?, new.as_str()))
        };
        Ok(Self(pairs.map(compile).collect::<anyhow::Result<_>>()?))
    }

    pub(crate) fn apply(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for (regex, new) in &self.0 {
            name = regex.replace_all(&name, *new).into_owned();
        }
        name
    }

    /// Fails if an expression matches no name, after the renames before it.
    pub(crate) fn check(&self, names: &[&str]) -> anyhow::Result<()> {
        let mut renamed: Vec<Cow<'_, str>> = names.iter().copied().map(Cow::from).collect();
        for (regex, new) in &self.0 {
            if !renamed.iter().any(|name| regex.is_match(name)) {
                let names: Vec<_> = renamed.iter().map(|name| &**name).collect();
                return Err(unmatched("--rename", regex.as_str(), &names));
            }
            for name in &mut renamed {
                *name = regex.replace_all(name, *new).into_owned().into();
            }
        }
        Ok(())
    }
}
