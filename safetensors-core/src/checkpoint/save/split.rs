//! [`split_into_shards`]: the shard of each tensor.

use std::collections::HashMap;
use std::hash::Hash;

use crate::checkpoint::MaxShardSize;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    /// The positions of each shard's tensors. No shard is empty.
    pub(crate) shards: Vec<Vec<usize>>,
    /// Counts each storage once.
    pub(crate) total_size: u64,
}

/// Divides tensors into the same shards as `huggingface_hub`, by their sizes and the storages that
/// they may share.
// A tensor that would exceed the limit closes the open shard and begins the next one. One that is
// larger than the limit gets its own shard, which comes before the open one. Tensors that share a
// storage go into the shard of the first of them, and only its size counts. The sizes 6, 6, 2, 6,
// 2, 2 with a limit of 10 become the shards 6, 6 + 2 and 6 + 2 + 2.
pub(crate) fn split_into_shards<Id: Eq + Hash>(
    tensors: impl IntoIterator<Item = (u64, Option<Id>)>,
    max_shard_size: MaxShardSize,
) -> Split {
    let MaxShardSize(limit) = max_shard_size;
    let mut shards: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut open_size = 0_u64;
    let mut total_size = 0_u64;
    // `storages` has the entry of each storage in `shared`: its first tensor, and the others. These
    // go into the shard of the first one as soon as that is known, at the end.
    let mut storages: HashMap<Id, usize> = HashMap::new();
    let mut shared: Vec<(usize, Vec<usize>)> = Vec::new();
    for (position, (size, storage)) in tensors.into_iter().enumerate() {
        if let Some(storage) = storage {
            let known = *storages.entry(storage).or_insert(shared.len());
            match shared.get_mut(known) {
                Some((_, others)) => {
                    others.push(position);
                    continue;
                }
                None => shared.push((position, Vec::new())),
            }
        }
        total_size = total_size.saturating_add(size);
        if size > limit {
            shards.push(vec![position]);
            continue;
        }
        if open_size.checked_add(size).is_none_or(|filled| filled > limit) {
            shards.push(std::mem::take(&mut open));
            open_size = 0;
        }
        open.push(position);
        open_size += size;
    }
    if !open.is_empty() {
        shards.push(open);
    }
    shared.retain(|(_, others)| !others.is_empty());
    if !shared.is_empty() {
        add_shared(&mut shards, shared);
    }
    Split { shards, total_size }
}

fn add_shared(shards: &mut [Vec<usize>], shared: Vec<(usize, Vec<usize>)>) {
    let mut places = HashMap::new();
    for (shard, tensors) in shards.iter().enumerate() {
        places.extend(tensors.iter().map(|&position| (position, shard)));
    }
    for (first, others) in shared {
        if let Some(&shard) = places.get(&first) {
            shards[shard].extend(others);
        }
    }
}
