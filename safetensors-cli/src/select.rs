//! [`Select`]: which tensors a command is about, by patterns of their names.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use safetensors_core::{Checkpoint, LazyTensor};

/// The option that picks tensors, for every command that has it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Select {
    /// Only tensors whose names match: * any text, ? one character, [0-9] one of, {a,b} either.
    /// May be given several times; a name has to match one of them
    #[arg(short = 'f', long = "filter", value_name = "GLOB", value_parser = glob)]
    patterns: Vec<Glob>,
}

impl Select {
    /// The test that names have to pass.
    pub(crate) fn matcher(&self) -> anyhow::Result<Matcher> {
        Matcher::new(&self.patterns)
    }
}

/// Patterns put together. Without any, every name matches.
#[derive(Debug)]
pub(crate) struct Matcher {
    set: Option<GlobSet>,
}

impl Matcher {
    /// A name has to match one of these.
    pub(crate) fn new(patterns: &[Glob]) -> anyhow::Result<Self> {
        if patterns.is_empty() {
            return Ok(Self { set: None });
        }
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(pattern.clone());
        }
        Ok(Self { set: Some(set.build()?) })
    }

    /// Whether the name matches a pattern.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.set.as_ref().is_none_or(|set| set.is_match(name))
    }

    /// Whether there are patterns at all.
    pub(crate) fn is_everything(&self) -> bool {
        self.set.is_none()
    }

    /// The tensors that match, in the checkpoint's order.
    ///
    /// Patterns that leave nothing of a checkpoint are an error: a misspelt one would look like an empty model.
    pub(crate) fn tensors<'a, S>(&self, checkpoint: &'a Checkpoint<S>) -> anyhow::Result<Vec<LazyTensor<'a, S>>> {
        let tensors: Vec<_> = checkpoint.tensors().filter(|tensor| self.matches(tensor.name())).collect();
        if tensors.is_empty() && !self.is_everything() {
            anyhow::bail!("no tensor matches --filter; `safetensors inspect --flat` shows the names");
        }
        Ok(tensors)
    }
}

/// A pattern over a whole name. `*` crosses dots and slashes: to the format a name has no parts.
pub(crate) fn glob(pattern: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_over_whole_names() {
        let matcher =
            |patterns: &[&str]| Matcher::new(&patterns.iter().map(|p| glob(p).unwrap()).collect::<Vec<_>>()).unwrap();
        let layers = matcher(&["*.layers.[0-3].*", "lm_head.{weight,bias}"]);
        assert!(layers.matches("model.layers.3.mlp/up") && layers.matches("lm_head.bias"));
        assert!(!layers.matches("model.layers.30.mlp") && !layers.matches("x.lm_head.bias"));
        assert!(matcher(&[]).matches("") && matcher(&[]).is_everything());
        assert!(glob("[").is_err());
    }
}
