//! [`EpochError`]: a problem of an epoch or of a record.

use burn::store::RecordError;
use safetensors_core::Error;
use safetensors_core::framework::NameList;

use crate::Burn;

/// Why an epoch could not be saved or restored: the source of an
/// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework), which names the file or the
/// directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochError {
    /// There is no such epoch.
    #[error("there is no such epoch; the directory has {}", listed(.found))]
    NotFound {
        /// The numbers of the epochs that the directory has.
        found: Vec<usize>,
    },
    /// The directory of the epoch has no manifest: another program wrote it, or it was copied in
    /// part.
    #[error("expected the file {manifest}, found none: this is no complete epoch")]
    NoManifest {
        /// The name of the manifest.
        manifest: &'static str,
    },
    /// The path of an epoch has something else, which stays.
    #[error(
        "this should be an epoch with its manifest.json, found {found}. It stays, because another \
         program may have made it: keep epochs in a directory of their own, such as \
         run/checkpoints (burn keeps its metrics in run/train and run/valid)"
    )]
    Foreign {
        /// A description of it.
        found: String,
    },
    /// The epoch is a link. It is neither resumed nor deleted, and a save of the same epoch
    /// replaces only the link.
    #[error("a link is not an epoch: move the epoch itself here to use it")]
    Link,
    /// The manifest is malformed.
    #[error("the manifest is malformed: {problem}")]
    BadManifest {
        /// The reason.
        problem: String,
    },
    /// The manifest is of another release, or has deltas, which the feature `delta` reads.
    #[error(
        "the manifest should have version {expected}, found version {found} (2 has deltas, which \
         the feature `delta` reads)"
    )]
    Version {
        /// The newest readable version.
        expected: u32,
        /// The version in the manifest.
        found: u32,
    },
    /// The manifest belongs to another epoch.
    #[error("the manifest should name epoch {expected}, found {found}")]
    OtherEpoch {
        /// The epoch in the name of the directory.
        expected: usize,
        /// The epoch in the manifest.
        found: usize,
    },
    /// The epoch has no such record.
    #[error("the epoch has no {name}, only {}", NameList(.found))]
    NoRecord {
        /// The file of the record.
        name: String,
        /// The files that the epoch has.
        found: Vec<String>,
    },
    /// A file has another length than the manifest says.
    #[error("the file should have {expected} bytes, found {found}")]
    Length {
        /// The length in the manifest.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// A file has another header than the manifest says.
    #[error("the header has changed: its XXH3-128 should be {expected}, found {found}")]
    Header {
        /// The digest in the manifest.
        expected: String,
        /// The digest of the header.
        found: String,
    },
    /// The base of a delta is missing, or another file.
    #[error(
        "the base (epoch {base}) is missing or has changed: expected {expected} (XXH3-128 of the \
         header), found {}", .found.as_deref().unwrap_or("none")
    )]
    Base {
        /// The epoch of the base.
        base: usize,
        /// The length and the digest in the manifest.
        expected: String,
        /// The length and the digest of the present file, if any.
        found: Option<String>,
    },
    /// Another process replaced the epoch while its records were restored.
    #[error("the epoch was replaced after another record of it was restored: restore all again")]
    Replaced,
    /// A metadata entry of a record is missing or malformed.
    #[error("the file is no record: {key:?} in the metadata should be {expected}")]
    NotARecord {
        /// The key of the entry.
        key: &'static str,
        /// The expected form of its value.
        expected: String,
    },
    /// The record exceeds burn's limit of tensors.
    #[error("the record has {found} tensors, over burn's limit of {limit}")]
    TooManyTensors {
        /// The limit.
        limit: usize,
        /// The number of tensors.
        found: usize,
    },
    /// A tensor exceeds burn's limit of bytes.
    #[error("the tensor has {found} bytes, over burn's limit of {limit}")]
    TensorTooLarge {
        /// The limit in bytes.
        limit: u64,
        /// The length in bytes.
        found: u64,
    },
    /// The names, shapes, paths and numbers of the record exceed burn's limit of bytes.
    #[error("the names and numbers of the record have {found} bytes, over burn's limit of {limit}")]
    MetadataTooLarge {
        /// The limit in bytes.
        limit: usize,
        /// The length in bytes.
        found: usize,
    },
    /// The model has no parameter with a state in the optimizer. It may be a copy, such as averaged
    /// weights, or weights were loaded just before the save.
    #[error(
        "the epoch's model has none of the optimizer's {found} parameters: begin with a new \
         optimizer, or restore burn's own ids by `Epochs::checkpointers_without_module`"
    )]
    NoStateInUse {
        /// The number of parameters with a state.
        found: usize,
    },
    /// Another record of the epoch could not be saved.
    #[error("the epoch is not saved, because another record of it could not be saved")]
    OtherFailed,
    /// burn could not make or read the bytes of a record, or has not given all of a record.
    #[error("the record: {0}")]
    Record(String),
}

impl From<EpochError> for Error {
    fn from(error: EpochError) -> Self {
        Self::framework::<Burn>(error)
    }
}

fn listed(epochs: &[usize]) -> String {
    match epochs {
        [] => "none".into(),
        [only] => format!("only epoch {only}"),
        [first, .., last] => format!("{} epochs, from {first} to {last}", epochs.len()),
    }
}

pub(super) fn of_record(error: impl Into<RecordError>) -> Error {
    let text = match error.into() {
        RecordError::Io(text) | RecordError::Validation(text) => text,
    };
    EpochError::Record(text).into()
}
