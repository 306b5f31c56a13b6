//! [`Base`]: whether a square weight is stored transposed, and the heads of fused ones.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::source::mismatch;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::format::error::{Error, Result};
use crate::format::python_json;
use crate::weights::MOST_SETTINGS;

/// A checkpoint, with its layers once they are asked for.
pub(super) struct Base<'a, S> {
    pub(super) checkpoint: &'a Checkpoint<S>,
    layers: OnceCell<Layers<'a>>,
}

impl<'a, S> Base<'a, S> {
    pub(super) fn new(checkpoint: &'a Checkpoint<S>) -> Self {
        Self { checkpoint, layers: OnceCell::new() }
    }

    /// Returns the numbers of heads of queries and of keys by `config.json`, if it has them.
    pub(super) fn heads(&self) -> Result<Option<[usize; 2]>>
    where
        S: ReadAt,
    {
        let config = self.checkpoint.read_beside("config.json", MOST_SETTINGS)?;
        let Some((path, json)) = config else { return Ok(None) };
        let config = python_json::read(&json)
            .map_err(|error| Error::from(mismatch("JSON", error.to_string())).in_path(path))?;
        let config = config.get("text_config").unwrap_or(&config);
        let count = |key| usize::try_from(config.get(key)?.as_u64()?).ok();
        let queries = count("num_attention_heads");
        Ok(queries.map(|it| [it, count("num_key_value_heads").unwrap_or(it)]))
    }

    /// Returns `true` if a square weight is stored transposed: by the layers with biases next to it,
    /// or by all layers and `setting`, the adapter's `fan_in_fan_out`. `None` if it is not known.
    ///
    /// PEFT knows the class of a layer and ignores the setting, which it saves for the last of the
    /// adapter's layers.
    pub(super) fn is_transposed(&self, name: &str, setting: bool) -> Option<bool> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        if self.checkpoint.get(&format!("{layer}.bias")).is_none() {
            // Every `Conv1D` has a bias.
            return Some(false);
        }
        let (next, all) = self.layers.get_or_init(|| layers(self.checkpoint));
        match (next.get(parent(layer)).copied().unwrap_or_default(), *all, setting) {
            ([true, false], ..) | ([true, true], _, false) => Some(false),
            ([false, true], ..) | ([false, false], [false, true], true) => Some(true),
            ([false, false], [_, false], false) => Some(false),
            _ => None,
        }
    }
}

/// Whether there are linear layers, and layers that are stored transposed: in each module, and in
/// all of them.
type Layers<'a> = (HashMap<&'a str, [bool; 2]>, [bool; 2]);

/// Finds the layers with a bias and a weight that is not square. Rows of the weight are outputs in
/// linear layers, or inputs, as in transformers' `Conv1D`.
fn layers<S>(checkpoint: &Checkpoint<S>) -> Layers<'_> {
    let mut layers = Layers::default();
    for tensor in checkpoint.tensors() {
        let Some(layer) = tensor.name().strip_suffix(".weight") else { continue };
        let Some(bias) = checkpoint.get(&format!("{layer}.bias")) else { continue };
        if let ([rows, columns], [outputs]) = (tensor.shape(), bias.shape())
            && rows != columns
        {
            for known in [layers.0.entry(parent(layer)).or_default(), &mut layers.1] {
                *known = [known[0] | (rows == outputs), known[1] | (columns == outputs)];
            }
        }
    }
    layers
}

/// Returns the module that has a layer.
fn parent(layer: &str) -> &str {
    layer.rsplit_once('.').map_or("", |(parent, _)| parent)
}
