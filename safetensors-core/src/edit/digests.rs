//! Keeping the digests that a file records true: they follow their tensors, and go where the data
//! does.

use std::collections::{HashMap, HashSet};

use crate::hash;
use crate::hash::TensorDigests;
use crate::header::{Metadata, SHA256_KEY};

/// Gives recorded digests the new names of their tensors and drops those of removed ones. A record
/// that the edit itself sets stays as it is, and so does one that cannot be read.
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
    let concerned = |name| renamed.contains_key(name) || removed.contains(name);
    if !record.iter().any(|(name, _)| concerned(name)) {
        return;
    }
    let kept = record.iter().filter(|(name, _)| !removed.contains(name));
    let record: TensorDigests =
        kept.map(|(name, digest)| (*renamed.get(name).unwrap_or(&name), digest)).collect();
    if record.is_empty() {
        new.remove(hash::KEY);
    } else {
        record.insert_into(new);
    }
}

/// Drops the digest of all data, because the data will be other. Returns whether there was one; one
/// that the edit itself sets stays.
pub(super) fn forget_data(old: &Metadata, new: &mut Metadata) -> bool {
    let key = SHA256_KEY;
    new.contains_key(key) && new.get(key) == old.get(key) && new.remove(key).is_some()
}
