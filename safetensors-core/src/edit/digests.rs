//! Keeping recorded digests correct: they are renamed and removed with their tensors.

use std::collections::{HashMap, HashSet};

use crate::hash;
use crate::hash::TensorDigests;
use crate::header::{Metadata, SHA256_KEY};

/// Renames the digests of renamed tensors, and removes the digests of removed ones. A record that
/// the edit itself sets stays as it is, and so does one that cannot be parsed.
pub(super) fn follow(
    old: &Metadata,
    new: &mut Metadata,
    renamed: &HashMap<&str, &str>,
    removed: &HashSet<&str>,
) {
    if !new.contains_key(hash::KEY) || new.get(hash::KEY) != old.get(hash::KEY) {
        return;
    }
    let Ok(Some(record)) = TensorDigests::from_metadata(new) else { return };
    let concerned = |name: &str| renamed.contains_key(name) || removed.contains(name);
    if !record.iter().any(|(name, _)| concerned(name)) {
        return;
    }
    let kept = record.iter().filter(|(name, _)| !removed.contains(name.as_str()));
    let new_name = |name| *renamed.get(name).unwrap_or(&name);
    let record: TensorDigests =
        kept.map(|(name, digest)| (new_name(name.as_str()), *digest)).collect();
    if record.is_empty() {
        new.remove(hash::KEY);
    } else {
        record.insert_into(new);
    }
}

/// Removes the digest of all data, because the data changes. A digest that the edit itself sets
/// stays. Returns whether one was removed.
pub(super) fn forget_data(old: &Metadata, new: &mut Metadata) -> bool {
    let key = SHA256_KEY;
    new.contains_key(key) && new.get(key) == old.get(key) && new.remove(key).is_some()
}
