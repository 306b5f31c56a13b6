//! The table of records: where each is, and its fate when its file changes.
//!
//! Every edit, append, rewrite and save asks this table. Nothing else lists records.

use alloc::vec::Vec;

use crate::format::header::{ATTEMPT_KEY, DIGESTS_KEY, Metadata, SHA256_KEY};

/// The name of a manifest, which may have a digest of a file's header.
pub(crate) const MANIFEST: &str = "manifest.json";

/// How the names of signatures end.
const SIGNATURES: [&str; 4] = [".asc", ".sig", ".sigstore", ".sigstore.json"];

/// A change of a file. Each includes the ones before it, except [`File`](Change::File).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The metadata, or the room before the data.
    Header,
    /// The names of tensors.
    Names,
    /// The set of tensors, or the order of their bytes.
    Data,
    /// Another file replaces it, or is saved with its metadata.
    File,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Under this key in the metadata of the file.
    Entry(&'static str),
    /// In a manifest in the directory of the file, or in one of the two above it.
    Manifest,
    /// In a signature in the directory of the file.
    Signature,
    /// In a checkpoint that depends on this one, and can be anywhere.
    Dependent,
}

/// The effect of a change on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is still right.
    Stays,
    /// It is changed along with the file.
    Follows,
    /// It is removed, and the caller can report it.
    Removed,
    /// It is removed. Another file does not need it.
    Forgotten,
    Refused,
    /// It may be wrong afterwards, and the caller can report it.
    Doubtful,
    /// It cannot be found. Other names of the file keep the old content.
    Unseen,
}

/// A record, and its fate with each [`Change`], in that order.
#[derive(Debug)]
pub(crate) struct Record(pub(crate) Place, [Fate; 4]);

use Fate::{Doubtful, Follows, Forgotten, Refused, Removed, Stays, Unseen};

/// All records. The digests of tensors, and a dependent checkpoint's digests of them, depend on
/// names and data, the SHA-256 on the data, and the attempt on the save that has made the file. A
/// manifest depends on every byte of the header, and a signature on every byte of the file.
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

/// Returns whether metadata has a record.
pub(crate) fn has_records(metadata: &Metadata) -> bool {
    RECORDS.iter().filter_map(Record::key).any(|key| metadata.contains_key(key))
}

/// Removes the records from metadata that a change makes wrong. Returns the keys that its caller
/// can name.
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

/// Returns the name of a signature without its ending; `None` for the name of another file.
pub(crate) fn signed_name(name: &str) -> Option<&str> {
    SIGNATURES.iter().find_map(|ending| name.strip_suffix(ending))
}

/// Removes everything from metadata that holds for one file alone: the digests of its tensors, the
/// SHA-256 of its data, and the record of the attempt of ranks that made it.
///
/// Saving does so with the metadata of its options. A program that changes data in another way, and
/// keeps the metadata, should call this. Returns `true` if it removes a digest.
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
