//! [`Select`]: selects the tensors that a command works on, by patterns of their names.

use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::glob::Pattern;
use safetensors_core::{Checkpoint, LazyTensor};

use crate::terminal::text;

/// The option `--filter` of several commands.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Select {
    /// Only tensors whose names match: * any text, ? one character, {a,b} either
    ///
    /// [0-9] matches one of several characters. A backslash makes the next character literal. May
    /// be given several times: a name has to match one of the patterns
    #[arg(short = 'f', long = "filter", value_name = "GLOB")]
    patterns: Vec<Pattern>,
}

impl Select {
    /// The matcher of the patterns.
    pub(crate) fn matcher(&self) -> Matcher<'_> {
        Matcher(&self.patterns)
    }
}

/// Several patterns. Without any, every name matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matcher<'p>(&'p [Pattern]);

impl Matcher<'_> {
    /// Whether the name matches a pattern.
    pub(crate) fn matches(self, name: &str) -> bool {
        self.is_everything() || self.0.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether every name matches, because there are no patterns.
    pub(crate) fn is_everything(self) -> bool {
        self.0.is_empty()
    }

    /// The tensors that match, in the checkpoint's order.
    ///
    /// Fails if the patterns match nothing. A misspelt pattern would otherwise look like an empty
    /// model.
    pub(crate) fn tensors<'a, S>(
        self,
        checkpoint: &'a Checkpoint<S>,
    ) -> anyhow::Result<Vec<LazyTensor<'a, S>>> {
        let tensors: Vec<_> =
            checkpoint.tensors().filter(|tensor| self.matches(tensor.name())).collect();
        if tensors.is_empty() && !self.is_everything() {
            let first = checkpoint.files().first().map(CheckpointFile::path);
            let path = checkpoint.index_path().or(first).map(text::path).unwrap_or_default();
            anyhow::bail!(
                "{path}: no tensor matches --filter; `safetensors inspect --flat` shows the names"
            );
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_over_whole_names() {
        let parsed = |patterns: &[&str]| {
            patterns.iter().map(|pattern| pattern.parse().unwrap()).collect::<Vec<Pattern>>()
        };
        let layers = parsed(&["*.layers.[0-3].*", "lm_head.{weight,bias}"]);
        let layers = Matcher(&layers);
        assert!(layers.matches("model.layers.3.mlp/up") && layers.matches("lm_head.bias"));
        assert!(!layers.matches("model.layers.30.mlp") && !layers.matches("x.lm_head.bias"));
        assert!(Matcher(&[]).matches("") && Matcher(&[]).is_everything());
        assert!("[".parse::<Pattern>().is_err());
    }
}
