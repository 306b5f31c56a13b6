//! [`Base`]: whether a square weight is stored transposed, and the heads of fused ones.

use std::cell::OnceCell;
use std::cmp::Ordering;

use super::MOST;
use super::source::mismatch;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::format::error::{Error, Result};
use crate::format::python_json;

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
        let Some((path, json)) = self.checkpoint.read_beside("config.json", MOST)? else {
            return Ok(None);
        };
        let config = python_json::read(&json)
            .map_err(|error| Error::from(mismatch("JSON", error.to_string())).in_path(path))?;
        let config = config.get("text_config").unwrap_or(&config);
        let count = |key| usize::try_from(config.get(key)?.as_u64()?).ok();
        let queries = count("num_attention_heads");
        Ok(queries.map(|it| [it, count("num_key_value_heads").unwrap_or(it)]))
    }

    /// Returns `true` if a square weight is stored transposed. `None` if it is not known.
    pub(super) fn is_transposed(&self, name: &str, setting: bool) -> Option<bool> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        if self.checkpoint.get(&format!("{layer}.bias")).is_none() {
            // Every `Conv1D` has a bias.
            return Some(false);
        }
        self.layers.get_or_init(|| Layers::new(self.checkpoint)).is_transposed(layer, setting)
    }
}

/// The layers of a checkpoint that have a bias and a weight that is not square: the shapes show
/// whether the rows of the weight are outputs, as in linear layers, or inputs, as in transformers'
/// `Conv1D`.
#[derive(Debug, Default)]
struct Layers<'a> {
    /// Sorted, as the others.
    linear: Vec<&'a str>,
    transposed: Vec<&'a str>,
}

impl<'a> Layers<'a> {
    fn new<S>(checkpoint: &'a Checkpoint<S>) -> Self {
        let mut found = Self::default();
        for tensor in checkpoint.tensors() {
            let Some(layer) = tensor.name().strip_suffix(".weight") else { continue };
            let Some(bias) = checkpoint.get(&format!("{layer}.bias")) else { continue };
            match (tensor.shape(), bias.shape()) {
                ([rows, columns], _) if rows == columns => {}
                ([rows, _], [outputs]) if rows == outputs => found.linear.push(layer),
                ([_, columns], [outputs]) if columns == outputs => found.transposed.push(layer),
                _ => {}
            }
        }
        found.linear.sort_unstable();
        found.transposed.sort_unstable();
        found
    }

    /// Returns `true` if the layer of a square weight with a bias stores it transposed: the layers
    /// with the longest common path decide. `None` if it is not known.
    ///
    /// `setting` is the adapter's `fan_in_fan_out`. PEFT knows the class of a layer and ignores the
    /// setting, which it saves for the last of the adapter's layers.
    fn is_transposed(&self, layer: &str, setting: bool) -> Option<bool> {
        let linear = nearest(&self.linear, layer);
        let transposed = nearest(&self.transposed, layer);
        let is_sibling = |(common, other): (usize, &str)| {
            !layer[common..].contains('.') && !other[common..].contains('.')
        };
        match linear.map(|(common, _)| common).cmp(&transposed.map(|(common, _)| common)) {
            Ordering::Greater => Some(false),
            Ordering::Less => (setting || transposed.is_some_and(is_sibling)).then_some(true),
            Ordering::Equal => (!setting).then_some(false),
        }
    }
}

/// Returns the layer with the longest common path, and the length of that.
fn nearest<'a>(sorted: &[&'a str], layer: &str) -> Option<(usize, &'a str)> {
    let (before, after) = sorted.split_at(sorted.partition_point(|other| *other < layer));
    let neighbours = before.last().into_iter().chain(after.first()).map(|&other| {
        let common = layer.bytes().zip(other.bytes()).take_while(|(one, other)| one == other);
        let common = &layer.as_bytes()[..common.count()];
        (common.iter().rposition(|&byte| byte == b'.').map_or(0, |dot| dot + 1), other)
    });
    neighbours.max_by_key(|(common, _)| *common)
}
