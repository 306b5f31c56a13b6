//! [`EpochError`]: a problem of an epoch or of a record.

use burn::store::RecordError;
use safetensors_core::Error;
use safetensors_core::framework::NameList;

use crate::Burn;

/// Why an epoch could not be saved or restored, in addition to the errors of core.
///
/// This error is the source of an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework),
/// which also names the file or the directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochError {
    /// There is no such epoch.
    #[error("there is no such epoch; the directory has {}", listed(.found))]
    NotFound {
        /// The numbers of the epochs that the directory has.
        found: Vec<usize>,
    },
    /// The directory of the epoch has no manifest. It was written by another program, or copied in
    /// part.
    #[error("expected the file {manifest}, found none: this is no complete epoch")]
    NoManifest {
        /// The name of the manifest.
        manifest: &'static str,
    },
    /// Something other than an epoch is where one is to be saved or deleted. It stays: another
    /// program may have made it.
    #[error(
        "this should be an epoch with its manifest.json, found {found}. It stays, because another \
         program may have made it: keep epochs in a directory of their own, such as \
         run/checkpoints (burn keeps its metrics in run/train and run/valid)"
    )]
    Foreign {
        /// The file or directory that is there.
        found: String,
    },
    /// The epoch is a link. It may lead to a directory that another program uses, so it is neither
    /// resumed nor deleted, and a save of the same epoch replaces only the link.
    #[error("this is a link, which is passed over: move the epoch itself here to use it")]
    Link,
    /// The manifest is malformed.
    #[error("the manifest is malformed: {problem}")]
    BadManifest {
        /// The reason.
        problem: String,
    },
    /// The epoch was saved by another release, which has another version of the manifest, or it has
    /// deltas, and the feature `delta` is off.
    #[error(
        "the manifest should have version {expected}, found version {found} (2 has deltas, which \
         the feature `delta` reads)"
    )]
    Version {
        /// The newest version that this build reads.
        expected: u32,
        /// The version in the manifest.
        found: u32,
    },
    /// The manifest belongs to another epoch.
    #[error("the manifest should be that of epoch {expected}, found epoch {found}")]
    OtherEpoch {
        /// The epoch that the name of the directory says.
        expected: usize,
        /// The epoch that the manifest says.
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
    /// The header of a file is not the one that the manifest was made for.
    #[error("the header has changed: its XXH3-128 should be {expected}, found {found}")]
    Header {
        /// The digest in the manifest.
        expected: String,
        /// The digest of the header.
        found: String,
    },
    /// The base of a file that is kept as a delta is missing, or is not the one that the delta was
    /// made of.
    #[error(
        "the base, of epoch {base}, should be a file of {expected} as the XXH3-128 of its header, \
         found {}", .found.as_deref().unwrap_or("none")
    )]
    Base {
        /// The epoch that the file is a delta of.
        base: usize,
        /// The length and the digest in the manifest.
        expected: String,
        /// The length and the digest of the present file; `None` if there is none.
        found: Option<String>,
    },
    /// Another process replaced the epoch after one of its records was restored.
    #[error("the epoch was replaced after another record of it was restored: restore all again")]
    Replaced,
    /// The file is no record of a checkpointer: a metadata entry is missing or malformed.
    #[error("the file is no record: {key:?} in the metadata should be {expected}")]
    NotARecord {
        /// The key of the entry.
        key: &'static str,
        /// The form that its value should have.
        expected: String,
    },
    /// The record has more tensors than burn can restore.
    #[error("the record has {found} tensors, over burn's limit of {limit}")]
    TooManyTensors {
        /// The most tensors of a record.
        limit: usize,
        /// The tensors of this record.
        found: usize,
    },
    /// A tensor has more bytes than burn can restore.
    #[error("the tensor has {found} bytes, over burn's limit of {limit}")]
    TensorTooLarge {
        /// The most bytes of a tensor.
        limit: u64,
        /// The bytes of this tensor.
        found: u64,
    },
    /// The record has longer metadata than burn can restore: the names, shapes and paths of its
    /// tensors, and its numbers.
    #[error("the names and numbers of the record have {found} bytes, over burn's limit of {limit}")]
    MetadataTooLarge {
        /// The most bytes of the metadata.
        limit: usize,
        /// The bytes of the metadata.
        found: usize,
    },
    /// The optimizer has states, and the model of the epoch has no parameter of any of their ids.
    /// Weights may have been loaded just before the epoch was saved, so that burn itself would
    /// start over. Or a copy of the model was saved, such as averaged weights.
    #[error(
        "none of the {found} parameters that the optimizer has a state of is in the epoch's model: \
         begin with a new optimizer, or restore burn's own ids by \
         `Epochs::checkpointers_without_module`"
    )]
    NoStateInUse {
        /// The number of parameters that the optimizer has a state of.
        found: usize,
    },
    /// Another record of the epoch could not be saved, so the epoch is not saved.
    #[error("the epoch is not saved, because another record of it could not be saved")]
    OtherFailed,
    /// burn could not make bytes of a record, or a record of bytes, or has not given all of a
    /// record.
    #[error("the record: {0}")]
    Record(String),
}

impl From<EpochError> for Error {
    fn from(error: EpochError) -> Self {
        Self::framework::<Burn>(error)
    }
}

/// Returns the epochs of a directory, in a message.
fn listed(epochs: &[usize]) -> String {
    match epochs {
        [] => "none".into(),
        [only] => format!("only epoch {only}"),
        [first, .., last] => format!("{} epochs, from {first} to {last}", epochs.len()),
    }
}

/// Returns the error of a record that burn could not take apart or make.
pub(super) fn of_record(error: impl Into<RecordError>) -> Error {
    let text = match error.into() {
        RecordError::Io(text) | RecordError::Validation(text) => text,
    };
    EpochError::Record(text).into()
}
