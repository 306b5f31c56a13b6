//! Renaming and removing digests with their tensors.

use std::collections::{HashMap, HashSet};

use crate::file::hash::{Digest, KEY, TensorDigests};
use crate::format::header::Metadata;

/// Appended tensors get a digest of no bytes. A record that cannot be parsed stays.
pub(super) fn follow(
    metadata: &mut Metadata,
    renamed: &HashMap<&str, &str>,
    removed: &HashSet<&str>,
    added: &[&str],
) {
    let Ok(Some(record)) = TensorDigests::from_metadata(metadata) else { return };
    let mut names = record.keys().map(String::as_str);
    if added.is_empty() && !names.any(|name| renamed.contains_key(name) || removed.contains(name)) {
        return;
    }
    let mut followed = Vec::new();
    for (name, digest) in record.iter().filter(|(name, _)| !removed.contains(name.as_str())) {
        followed.push((*renamed.get(name.as_str()).unwrap_or(&name.as_str()), *digest));
    }
    followed.extend(added.iter().map(|&name| (name, Digest::compute(b""))));
    let record: TensorDigests = followed.into_iter().collect();
    if record.is_empty() {
        metadata.remove(KEY);
    } else {
        record.insert_into(metadata);
    }
}
