//! The loss of an input that the output replaces.

use std::collections::{BTreeSet, HashMap};

use safetensors_core::convert::is_lossless;
use safetensors_core::{Metadata, TensorSource};

use super::preview::Preview;
use super::source::Source;
use crate::input::Rewrite;
use crate::output::existing::Existing;
use crate::terminal::text;

pub(super) fn loss(
    existing: &Existing,
    sources: &[Source],
    rewrite: &Rewrite<'_>,
    preview: &Preview,
    metadata: &Metadata,
) -> Option<String> {
    let new = rewrite.tensors().filter(|(name, _)| preview.writes(name));
    let new: HashMap<_, _> = new.map(|(_, tensor)| (tensor.source_name(), tensor)).collect();
    let (mut lost, mut changed, mut keys) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut tensors, mut entries) = (0_u64, 0_u64);
    for source in sources.iter().filter(|source| existing.has_any(&source.files())) {
        for name in source.names() {
            tensors += 1;
            match new.get(name).map(|tensor| (tensor, tensor.source_dtype(), tensor.dtype())) {
                None => lost.insert(name),
                Some((tensor, from, to)) => {
                    let is_kept = from == to || is_lossless(from, to);
                    (tensor.is_quantized() || !is_kept) && changed.insert(name)
                }
            };
        }
        changed.extend(source.merged.keys().map(String::as_str));
        changed.extend(source.numbers.iter().map(|weight| &*weight.name));
        let checkpoint = &source.checkpoint;
        let aliases: BTreeSet<_> = checkpoint.aliases().map(|(name, _)| name).collect();
        let own = checkpoint.metadata().iter().filter(|(key, _)| !aliases.contains(key.as_str()));
        for (key, value) in own {
            entries += 1;
            let is_other =
                |it: &Source| it.checkpoint.metadata().get(key).is_some_and(|found| found != value);
            if !metadata.contains_key(key) || sources.iter().any(is_other) {
                keys.insert(key.as_str());
            }
        }
    }
    let some = |names: &BTreeSet<&str>, of, what: &str, how: &str| {
        let (count, of) = (text::count(names.len() as u64), text::counted(of, what));
        (!names.is_empty())
            .then(|| format!("{count} of its {of} would {how}: {}", text::some(names)))
    };
    some(&lost, tensors, "tensor", "be lost")
        .or_else(|| some(&changed, tensors, "tensor", "lose precision"))
        .or_else(|| some(&keys, entries, "metadata key", "be lost"))
}
