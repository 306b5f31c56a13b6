//! Keeping recorded digests correct: they are renamed and removed with their tensors.

use std::collections::{HashMap, HashSet};

use crate::file::hash::{Digest, KEY, TensorDigests};
use crate::format::header::Metadata;

/// Renames the digests of renamed tensors, removes the digests of removed ones, and adds digests
/// for added ones, as if they were empty. A record that cannot be parsed stays unchanged.
pub(super) fn follow(
    metadata: &mut Metadata,
    renamed: &HashMap<&str, &str>,
    removed: &HashSet<&str>,
    added: &[&str],
) {
    let Ok(Some(record)) = TensorDigests::from_metadata(metadata) else { return };
    let is_changed = |name: &str| renamed.contains_key(name) || removed.contains(name);
    if added.is_empty() && !record.iter().any(|(name, _)| is_changed(name)) {
        return;
    }
    let kept = record.iter().filter(|(name, _)| !removed.contains(name.as_str()));
    let new_name = |name| *renamed.get(name).unwrap_or(&name);
    let kept = kept.map(|(name, digest)| (new_name(name.as_str()), *digest));
    let added = added.iter().map(|&name| (name, Digest::of(b"")));
    let record: TensorDigests = kept.chain(added).collect();
    if record.is_empty() {
        metadata.remove(KEY);
    } else {
        record.insert_into(metadata);
    }
}
