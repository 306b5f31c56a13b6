//! [`Select`]: selects the tensors that a command works on, by patterns of their names.

use anyhow::Context;
use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::glob::Pattern;
use safetensors_core::{Checkpoint, LazyTensor};

use super::unmatched::unmatched;
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
    /// Go on if a pattern of names matches no tensor; without this, that is an error
    #[arg(long)]
    pub(crate) ignore_unmatched: bool,
}

impl Select {
    /// The matcher of the patterns.
    pub(crate) fn matcher(&self) -> Matcher<'_> {
        Matcher { patterns: &self.patterns, ignore_unmatched: self.ignore_unmatched }
    }
}

/// Several patterns. Without any, every name matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matcher<'p> {
    patterns: &'p [Pattern],
    ignore_unmatched: bool,
}

impl Matcher<'_> {
    /// Makes a matcher of every name, which checks the patterns of other options.
    pub(crate) fn everything(ignore_unmatched: bool) -> Self {
        Self { patterns: &[], ignore_unmatched }
    }

    /// Whether the name matches a pattern.
    pub(crate) fn matches(self, name: &str) -> bool {
        self.is_everything() || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether every name matches, because there are no patterns.
    pub(crate) fn is_everything(self) -> bool {
        self.patterns.is_empty()
    }

    /// The tensors that match, in the checkpoint's order. Fails as
    /// [`check`](Self::check) does.
    pub(crate) fn tensors<'a, S>(
        self,
        checkpoint: &'a Checkpoint<S>,
    ) -> anyhow::Result<Vec<LazyTensor<'a, S>>> {
        let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
        self.check(&names).with_context(|| {
            let first = checkpoint.files().first().map(CheckpointFile::path);
            checkpoint.index_path().or(first).map(text::path).unwrap_or_default()
        })?;
        Ok(self.of(checkpoint))
    }

    /// The tensors that match, which may be none.
    pub(crate) fn of<S>(self, checkpoint: &Checkpoint<S>) -> Vec<LazyTensor<'_, S>> {
        checkpoint.tensors().filter(|tensor| self.matches(tensor.name())).collect()
    }

    /// Fails if one of the patterns matches none of these names. A misspelt pattern would otherwise
    /// look like a tensor that is not there.
    pub(crate) fn check(self, names: &[&str]) -> anyhow::Result<()> {
        self.check_others(self.patterns.iter().map(|pattern| ("--filter", pattern)), names)
    }

    /// Checks the patterns of other options as [`check`](Self::check) does.
    pub(crate) fn check_others<'o>(
        self,
        patterns: impl IntoIterator<Item = (&'o str, &'o Pattern)>,
        names: &[&str],
    ) -> anyhow::Result<()> {
        for (option, pattern) in patterns {
            if !self.ignore_unmatched && !names.iter().any(|name| pattern.matches(name)) {
                return Err(unmatched(option, pattern.as_str(), names));
            }
        }
        Ok(())
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
        let matcher = |patterns| Matcher { patterns, ignore_unmatched: false };
        let layers = matcher(&layers);
        assert!(layers.matches("model.layers.3.mlp/up") && layers.matches("lm_head.bias"));
        assert!(!layers.matches("model.layers.30.mlp") && !layers.matches("x.lm_head.bias"));
        assert!(matcher(&[]).matches("") && matcher(&[]).is_everything());
        assert!("[".parse::<Pattern>().is_err());
    }
}
