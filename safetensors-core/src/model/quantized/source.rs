//! The files of a checkpoint with quantised weights as numbers.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::QuantizedWeight;
use crate::checkpoint::{Checkpoint, Computed, ComputedTensor, NewTensor, Replacement};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::header::{Metadata, is_reserved};
use crate::format::slice::read_range::Files;
use crate::weights::{LAYERS, TENSOR_NAMES, Weight, bare};

impl ComputedTensor for Weight {
    fn name(&self) -> &str {
        &self.name
    }

    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn files(&self) -> Vec<usize> {
        self.tensors.iter().map(|tensor| tensor.file).collect()
    }

    fn read(&self, files: &dyn Files, first: u64, out: &mut [f32]) -> io::Result<()> {
        Self::read(self, files, first, out)
    }

    fn will_read(&self, elements: &[Range<u64>]) {
        Self::will_read(self, elements);
    }

    fn has_read(&self, elements: Range<u64>) {
        Self::has_read(self, elements);
    }
}

pub(super) fn dequantized<S: ReadAt>(
    checkpoint: Checkpoint<S>,
    weights: Vec<(QuantizedWeight, Weight)>,
) -> Result<Checkpoint<Computed<S>>> {
    let (abouts, mut weights): (Vec<_>, Vec<Weight>) = weights.into_iter().unzip();
    let spare = Arc::default();
    weights.iter_mut().for_each(|weight| weight.share(&spare));
    let members = abouts.iter().flat_map(|about| &about.tensors);
    let mut instead: HashMap<_, _> = members.map(|name| (&**name, None)).collect();
    for (number, about) in abouts.iter().enumerate() {
        let codes = about.tensors.first();
        instead.extend(codes.map(|name| (&**name, Some(number))));
    }
    let names: Vec<_> = abouts.iter().map(|about| &*about.name).collect();
    let stored = instead.iter().map(|(&name, weight)| (name, weight.map(|at| names[at])));
    let view = View { stored: stored.collect(), names: names.iter().copied().collect() };
    checkpoint.computed(Replacement {
        tensors: weights.into_iter().map(NewTensor::numbers).collect(),
        instead: instead.into_iter().map(|(name, it)| (name, it.into_iter().collect())).collect(),
        added: Vec::new(),
        others: Vec::new(),
        metadata: &|metadata| view.metadata(metadata),
    })
}

struct View<'a> {
    names: HashSet<&'a str>,
    /// Codes have the name of their weight, scales and others none.
    stored: HashMap<&'a str, Option<&'a str>>,
}

impl View<'_> {
    fn metadata(&self, metadata: &Metadata) -> Metadata {
        let mut kept = metadata.clone();
        if self.names.is_empty() {
            return kept;
        }
        self.rename_aliases(&mut kept);
        if let Some(json) = kept.remove(LAYERS) {
            let json = self.without(&json, "/layers");
            kept.extend(json.map(|json| (LAYERS.to_owned(), json)));
        }
        if let Some(json) = kept.remove(TENSOR_NAMES) {
            let before = kept.len();
            kept.retain(|key, _| !self.names.contains(&**key));
            // Without a weight of torchao, the rest marks each tensor as one.
            let is_plain = |json: &String| json.starts_with("{\"_type\": \"Tensor\"");
            let others = kept.values().filter(|json| json.starts_with("{\"_type\""));
            if before > kept.len() && others.clone().all(is_plain) {
                kept.retain(|_, json| !is_plain(json));
            } else if let Some(json) = self.without(&json, "") {
                kept.insert(TENSOR_NAMES.to_owned(), json);
            }
        }
        kept
    }

    /// Makes names of codes names of their weights, and removes names of scales.
    fn rename_aliases(&self, metadata: &mut Metadata) {
        let is_alias =
            |key: &str, value: &str| !is_reserved(key) && self.stored.contains_key(value);
        let aliases: Vec<_> = metadata
            .iter()
            .filter(|(key, value)| is_alias(key, value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for (alias, stored) in aliases {
            metadata.remove(&alias);
            if let Some(Some(weight)) = self.stored.get(&*stored) {
                metadata.insert(like_weight(&alias, &stored, weight), (*weight).to_owned());
            }
        }
    }

    fn without(&self, json: &str, pointer: &str) -> Option<String> {
        let Ok(mut value) = serde_json::from_str::<Value>(json) else {
            return Some(json.to_owned());
        };
        let is_left = match value.pointer_mut(pointer) {
            Some(Value::Object(layers)) => {
                let names: HashSet<_> = self.names.iter().map(|name| bare(name)).collect();
                layers.retain(|module, _| !names.contains(&*format!("{}.weight", bare(module))));
                !layers.is_empty()
            }
            Some(Value::Array(names)) => {
                let is_number = |name: &str| self.names.contains(name);
                names.retain(|name| !name.as_str().is_some_and(is_number));
                !names.is_empty()
            }
            _ => true,
        };
        is_left.then(|| value.to_string())
    }
}

/// Returns `b.weight` if the codes `a.qweight` of `a.weight` are also called `b.qweight`.
fn like_weight(alias: &str, codes: &str, weight: &str) -> String {
    let same = codes.chars().zip(weight.chars()).take_while(|(a, b)| a == b);
    let same: usize = same.map(|(char, _)| char.len_utf8()).sum();
    match alias.strip_suffix(&codes[same..]) {
        Some(start) => format!("{start}{}", &weight[same..]),
        None => alias.to_owned(),
    }
}
