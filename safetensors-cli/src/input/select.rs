//! [`Select`]: selects tensors by patterns of their names.

use std::collections::HashSet;

use anyhow::Context;
use safetensors_core::glob::Pattern;
use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Checkpoint, LazyTensor};

use super::unmatched::{only_codes, unmatched};
use super::{find, opened_path};

/// The option `--filter` of several commands.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Select {
    /// Only tensors with matching names: * any text, ? one character, {a,b} either
    ///
    /// [0-9] is one of several characters; a backslash makes the next one literal. May be repeated:
    /// one pattern has to match
    #[arg(short = 'f', long = "filter", value_name = "GLOB")]
    patterns: Vec<Pattern>,
    /// Allow patterns that match no tensor, which is otherwise an error
    #[arg(long)]
    pub(crate) ignore_unmatched: bool,
}

impl Select {
    pub(crate) fn matcher(&self) -> Matcher<'_> {
        Matcher { patterns: &self.patterns, ignore_unmatched: self.ignore_unmatched }
    }
}

/// Weights that are read as numbers, not the tensors that store them.
#[derive(Default)]
pub(crate) struct Replaced<'w> {
    pub(crate) weights: Vec<&'w QuantizedWeight>,
    /// The option that takes the stored tensors.
    pub(crate) instead: &'static str,
}

impl Replaced<'_> {
    /// Names the weights with a tensor that matches.
    fn matching(&self, pattern: &Pattern) -> Vec<&str> {
        let weights = self.weights.iter();
        let of_it = weights.filter(|it| it.tensors.iter().any(|name| pattern.matches(name)));
        of_it.map(|weight| &*weight.name).collect()
    }
}

/// Several patterns. Without any, every name matches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matcher<'p> {
    patterns: &'p [Pattern],
    ignore_unmatched: bool,
}

impl Matcher<'_> {
    /// Checks the patterns of other options.
    pub(crate) fn everything(ignore_unmatched: bool) -> Self {
        Self { patterns: &[], ignore_unmatched }
    }

    pub(crate) fn matches(self, name: &str) -> bool {
        self.is_everything() || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    pub(crate) fn is_everything(self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the tensors that match, in the checkpoint's order. Fails as [`check`](Self::check)
    /// does.
    pub(crate) fn tensors<'a, S>(
        self,
        checkpoint: &'a Checkpoint<S>,
    ) -> anyhow::Result<Vec<LazyTensor<'a, S>>> {
        self.check(&find::names(checkpoint), &Replaced::default())
            .with_context(|| opened_path(checkpoint))?;
        Ok(self.select(checkpoint))
    }

    /// Returns the tensors that match by their name or an alias, if any.
    pub(crate) fn select<S>(self, checkpoint: &Checkpoint<S>) -> Vec<LazyTensor<'_, S>> {
        let aliases = checkpoint.aliases().filter(|(alias, _)| self.matches(alias));
        let by_alias: HashSet<_> = aliases.map(|(_, tensor)| tensor.name()).collect();
        let tensors = checkpoint.tensors();
        tensors.filter(|it| self.matches(it.name()) || by_alias.contains(it.name())).collect()
    }

    /// Fails if a pattern matches none of these names.
    // Otherwise a misspelt pattern, or one of tensors that weights replace, would look like a
    // missing tensor.
    pub(crate) fn check(self, names: &[&str], replaced: &Replaced<'_>) -> anyhow::Result<()> {
        let patterns = self.patterns.iter().map(|pattern| ("--filter", pattern));
        self.check_others(patterns, names, replaced)
    }

    /// Checks the patterns of other options as [`check`](Self::check) does.
    pub(crate) fn check_others<'o>(
        self,
        patterns: impl IntoIterator<Item = (&'o str, &'o Pattern)>,
        names: &[&str],
        replaced: &Replaced<'_>,
    ) -> anyhow::Result<()> {
        for (option, pattern) in patterns {
            if self.ignore_unmatched || names.iter().any(|name| pattern.matches(name)) {
                continue;
            }
            return Err(match replaced.matching(pattern) {
                weights if weights.is_empty() => unmatched(option, pattern.as_str(), names),
                weights => only_codes(option, pattern.as_str(), weights, replaced.instead),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_entire_names() {
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
