//! [`Names`]: the names that a model can see, and which of them are one tensor.

use std::collections::{HashMap, HashSet};

use safetensors_core::framework::{NameList, similar_names};
use safetensors_core::{Checkpoint, LazyTensor};

use crate::error::into_candle_error;
use crate::weights::{Weights, stored_otherwise};

#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// Whether the own name of each tensor is hidden, by position. Empty if none is.
    hidden: Vec<bool>,
    hidden_aliases: HashSet<String>,
    /// The number of visible names by position, if there are several.
    tied: HashMap<usize, usize>,
}

pub(super) struct NamedTensor<'a, S> {
    pub(super) position: usize,
    pub(super) tensor: LazyTensor<'a, S>,
}

impl Names {
    /// Makes all names visible.
    pub(super) fn new<S>(checkpoint: &Checkpoint<S>) -> Self {
        let mut names = Self::default();
        names.count(checkpoint);
        names
    }

    /// Hides more names.
    pub(super) fn filter<S>(
        &mut self,
        checkpoint: &Checkpoint<S>,
        mut keep: impl FnMut(&str) -> bool,
    ) {
        self.hidden.resize(checkpoint.len(), false);
        for (hidden, tensor) in self.hidden.iter_mut().zip(checkpoint.tensors()) {
            *hidden |= !keep(tensor.name());
        }
        for (alias, _) in checkpoint.aliases() {
            if !keep(alias) {
                self.hidden_aliases.insert(alias.into());
            }
        }
        self.count(checkpoint);
    }

    fn count<S>(&mut self, checkpoint: &Checkpoint<S>) {
        let mut tied = HashMap::new();
        for (alias, tensor) in checkpoint.aliases() {
            if !self.hidden_aliases.contains(alias)
                && let Some(position) = checkpoint.position(tensor.name())
            {
                let own = || usize::from(!self.is_hidden(position));
                *tied.entry(position).or_insert_with(own) += 1;
            }
        }
        tied.retain(|_, names| *names > 1);
        self.tied = tied;
    }

    pub(super) fn find<'a, S>(
        &self,
        checkpoint: &'a Checkpoint<S>,
        name: &str,
    ) -> Option<NamedTensor<'a, S>> {
        let position = checkpoint.position(name)?;
        let tensor = checkpoint.tensor_at(position)?;
        let is_hidden = if tensor.name() == name {
            self.is_hidden(position)
        } else {
            self.hidden_aliases.contains(name)
        };
        (!is_hidden).then_some(NamedTensor { position, tensor })
    }

    /// Returns visible names and aliases, with the positions of their tensors.
    pub(super) fn visible<'a, S>(
        &'a self,
        checkpoint: &'a Checkpoint<S>,
    ) -> impl Iterator<Item = (&'a str, usize)> {
        let own = checkpoint.tensors().enumerate().map(|(i, tensor)| (tensor.name(), i));
        let aliases = checkpoint.aliases().filter_map(|(alias, tensor)| {
            Some((alias, checkpoint.position(tensor.name())?))
                .filter(|_| !self.hidden_aliases.contains(alias))
        });
        own.filter(|&(_, position)| !self.is_hidden(position)).chain(aliases)
    }

    pub(super) fn hidden(&self) -> &[bool] {
        &self.hidden
    }

    pub(super) fn is_hidden(&self, position: usize) -> bool {
        self.hidden.get(position).is_some_and(|&hidden| hidden)
    }

    /// Returns the number of visible names of a tensor that has several.
    pub(super) fn tied(&self, position: usize) -> Option<usize> {
        self.tied.get(&position).copied()
    }

    /// Returns `true` if the missing name is a quantised weight that the options refuse.
    pub(crate) fn is_refused(
        &self,
        Weights { checkpoint, options }: &Weights<'_>,
        name: &str,
    ) -> bool {
        let weight = stored_otherwise(checkpoint, |it| it == name, options);
        let codes = weight.as_ref().and_then(|weight| weight.tensors.first());
        codes.is_some_and(|codes| self.find(checkpoint, codes).is_some())
    }

    /// Explains how a weight is stored, or names searched places and similar names.
    pub(crate) fn missing(&self, weights: &Weights<'_>, name: &str) -> candle_core::Error {
        let checkpoint = &weights.checkpoint;
        if self.is_refused(weights, name) {
            return into_candle_error(checkpoint.missing(name));
        }
        let place = match (checkpoint.index_path(), checkpoint.files()) {
            (Some(index), _) => index.display().to_string(),
            (None, [file]) => file.path().display().to_string(),
            (None, []) => "no file".into(),
            (None, files) => {
                let files = files.iter().map(|file| file.path().display().to_string());
                NameList(&files.collect::<Vec<_>>()).to_string()
            }
        };
        let similar = similar_names(name, self.visible(checkpoint).map(|(name, _)| name));
        let path = match similar[..] {
            [] => format!("{name} in {place}"),
            _ => format!("{name} in {place}; did you mean {}?", NameList(&similar)),
        };
        candle_core::Error::CannotFindTensor { path }.bt()
    }
}
