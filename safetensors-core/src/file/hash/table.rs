//! The table of records, which every edit, append, rewrite and save asks.

use alloc::vec::Vec;

use crate::format::header::{ATTEMPT_KEY, DIGESTS_KEY, Metadata, SHA256_KEY};

pub(crate) const MANIFEST: &str = "manifest.json";

const SIGNATURES: [&str; 4] = [".asc", ".sig", ".sigstore", ".sigstore.json"];

/// Each includes the earlier ones, except [`File`](Change::File).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The metadata, or the room before the data.
    Header,
    Names,
    /// The set of tensors, or the order of their bytes.
    Data,
    /// Another file replaces it, or is saved with its metadata.
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Entry(&'static str),
    /// In the file's directory, or one of the two above it.
    Manifest,
    Signature,
    /// In any checkpoint that depends on this one.
    Dependent,
}

/// The effect of a change on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    /// It changes with the file.
    Follows,
    /// It is removed, for the caller to report.
    Removed,
    /// It is removed, and nobody misses it.
    Forgotten,
    Refused,
    /// It may be wrong, for the caller to report.
    Doubtful,
    /// It cannot be found. Other names of the file keep the old content.
    Unseen,
}

#[derive(Debug)]
pub(crate) struct Record(pub(crate) Place, [Fate; 4]);

use Fate::{Doubtful, Follows, Forgotten, Refused, Removed, Stays, Unseen};

// Digests of tensors, here and in a dependent checkpoint, depend on names and data, the SHA-256 on
// the data, the attempt on the save, a manifest on every byte of the header, and a signature on
// every byte of the file.
#[rustfmt::skip]
pub(crate) const RECORDS: [Record; 6] = [
    //                                header    names     data      file
    // A save does not compute them again: to a bucket or a pipe, it would compute each tensor
    // twice.
    Record(Place::Entry(DIGESTS_KEY), [Stays,    Follows,  Follows,  Removed]),
    Record(Place::Entry(SHA256_KEY),  [Stays,    Stays,    Removed,  Removed]),
    Record(Place::Entry(ATTEMPT_KEY), [Stays,    Stays,    Stays,    Forgotten]),
    // An edit does not write it again: its format belongs to another package, and a kill between
    // the two files would leave an epoch that is not complete.
    Record(Place::Manifest,           [Refused,  Refused,  Refused,  Refused]),
    Record(Place::Signature,          [Doubtful, Doubtful, Doubtful, Doubtful]),
    Record(Place::Dependent,          [Stays,    Unseen,   Unseen,   Unseen]),
];

impl Record {
    pub(crate) fn fate(&self, change: Change) -> Fate {
        self.1[change as usize]
    }

    fn key(&self) -> Option<&'static str> {
        match self.0 {
            Place::Entry(key) => Some(key),
            Place::Manifest | Place::Signature | Place::Dependent => None,
        }
    }
}

pub(crate) fn has_records(metadata: &Metadata) -> bool {
    RECORDS.iter().filter_map(Record::key).any(|key| metadata.contains_key(key))
}

/// Removes the records that a change makes wrong. Returns the keys to report.
pub(crate) fn forget(metadata: &mut Metadata, change: Change) -> Vec<&'static str> {
    // Not an error: a training that goes on with the metadata of its last checkpoint would fail.
    let mut removed = Vec::new();
    for record in &RECORDS {
        let (fate, Some(key)) = (record.fate(change), record.key()) else { continue };
        if matches!(fate, Removed | Forgotten) && metadata.remove(key).is_some() && fate == Removed
        {
            removed.push(key);
        }
    }
    removed
}

/// Returns `None` if this is no signature.
pub(crate) fn signed_name(name: &str) -> Option<&str> {
    SIGNATURES.iter().find_map(|ending| name.strip_suffix(ending))
}

/// Removes the records of a single file from metadata: digests of tensors, the SHA-256 of data, the
/// attempt of ranks. Saving does so; call this if other code changes the data and keeps the
/// metadata. Returns `true` if it removes a digest.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::digest::{self, TensorDigests};
///
/// let mut metadata = Metadata::from([("format".into(), "pt".into())]);
/// metadata.insert(digest::KEY.into(), TensorDigests::default().to_string());
/// assert!(digest::remove_record(&mut metadata));
/// assert_eq!(metadata.len(), 1);
/// ```
#[cfg(feature = "std")]
pub fn remove_record(metadata: &mut Metadata) -> bool {
    !forget(metadata, Change::File).is_empty()
}
