//! [`ErrorKind`]: failures of this crate, as kinds of the library's errors.

use safetensors_core::Dtype;
use safetensors_core::framework::Quoted;
pub use safetensors_core::{Error, Result};

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

/// A failure of a delta, as [`ErrorKind::Other`](safetensors_core::ErrorKind::Other) of an
/// [`Error`] that names file and tensor.
///
/// Sizes and positions are in bytes. `version` is the version that a delta leads to. Messages
/// shorten text from outside, fields do not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // The index and the files of a delta.
    /// A missing or unknown entry in the index's metadata.
    #[error("{key} in the index should be {expected}, found {}", OrNothing(.found.as_deref()))]
    BadField { key: &'static str, expected: &'static str, found: Option<String> },
    /// A tensor that the index does not place in its file. Some readers would apply it.
    #[error("the index does not place it in this file, but some readers would apply it")]
    Unindexed,
    /// A file of tensors that is not in the index. Some readers would apply it.
    #[error("the index does not name this file, but some readers would apply it")]
    StrayFile,
    /// A difference that is not a row of bytes.
    #[error("a compressed difference should be U8 with one dimension, found {dtype} with {ndim}")]
    NotBytes { dtype: Dtype, ndim: usize },
    /// A tensor without a checksum.
    #[error("__metadata__ has no checksum of it")]
    NoChecksum,
    /// A checksum of a wrong length.
    #[error("its checksum should be {expected} lower-case hex digits, found {}", Quoted(.found))]
    BadChecksum { expected: usize, found: String },
    /// A tensor to add or replace that no file has.
    #[error("the index says that it is {change}, but no file has its bytes")]
    NoBytes { change: &'static str },
    /// Two changes of a tensor.
    #[error("the delta has it as {one} and as {other}")]
    TwoChanges { one: &'static str, other: &'static str },

    // One compressed difference.
    /// Bytes that are not a zstd frame.
    #[error("expected a zstd frame, found {}", Hex(.found))]
    NotAFrame { found: Vec<u8> },
    /// A skippable frame.
    #[error("it is a skippable zstd frame, which has no content")]
    SkippableFrame,
    /// A frame that needs a dictionary.
    #[error("its frame needs a dictionary")]
    NeedsDictionary,
    /// A frame with a window over the limit.
    #[error("its frame needs a larger window than the limit of {limit} bytes")]
    WindowTooLarge { limit: u64 },
    /// A frame with a different size than the tensor.
    #[error("its frame should have a content of {expected} bytes, found {found}")]
    ContentSize { expected: u64, found: u64 },
    /// A frame with more bytes than the tensor.
    #[error("its frame holds more than the expected {expected} bytes")]
    ContentTooLong { expected: u64 },
    /// Tensors that are larger than their compressed bytes and the base explain.
    #[error(
        "its whole tensors would have {found} bytes, over the limit of {limit}: the base and 1,032 \
         times the compressed bytes; publish a full version"
    )]
    TooExpanded { limit: u64, found: u64 },
    /// A frame of unknown size.
    #[error("its frame lacks the size of its content")]
    UnknownContentSize,
    /// A frame that is cut off.
    #[error("its frame is cut off after {found} bytes")]
    FrameCut { found: u64 },
    /// Bytes after the frame.
    #[error("its zstd frame ends at byte {end}, but {found} bytes are there")]
    AfterFrame { end: u64, found: u64 },
    /// A frame that cannot be decompressed.
    #[error("its frame is damaged: {problem}")]
    DamagedFrame { problem: String },
    /// More positions than the tensor has bytes.
    #[error("{found} positions are to be overwritten, but the tensor has only {len} bytes")]
    TooManyPositions { len: u64, found: u64 },
    /// Positions that do not ascend.
    #[error("position {found} to be overwritten should be above the one before it, {before}")]
    PositionOrder { before: u64, found: u64 },
    /// A position after the tensor's end.
    #[error("position {found} to be overwritten is outside of the tensor, which has {len} bytes")]
    PositionOutside { len: u64, found: u64 },

    // A delta and a base.
    /// A changed tensor that base and earlier deltas lack.
    #[error("the delta {} changes or removes it, but the base has no such tensor", Quoted(.version))]
    NotInBase { version: String },
    /// An added tensor that base or earlier deltas have.
    #[error("the delta {} adds it, but the base has a tensor of this name", Quoted(.version))]
    InBase { version: String },
    /// A wrong tensor after the delta: a different base, or a damaged delta.
    #[error(
        "its {algorithm} after the delta {} should be {expected}, found {found}: the base is \
         another one, or the delta is damaged", Quoted(.version)
    )]
    WrongTensor { version: String, algorithm: &'static str, expected: String, found: String },
    /// A different base than the delta's.
    #[error(
        "the delta {} was made of another base: the digest of its base is {expected}, found \
         {found}", Quoted(.version)
    )]
    WrongBase { version: String, expected: String, found: String },
    /// A checkpoint that differs from the delta's result, although all changed tensors are right.
    #[error("the digest after the delta {} should be {expected}, found {found}", Quoted(.version))]
    WrongResult { version: String, expected: String, found: String },
    /// A file of the base outside the directory of its index.
    #[error("it is not below the directory of the index")]
    FileElsewhere,

    // Several deltas.
    /// There is no delta.
    #[error("expected at least one delta")]
    NoDelta,
    /// Two deltas to one version.
    #[error("two deltas lead to the version {}", Quoted(.version))]
    Twice { version: String },
    /// Two deltas from one version.
    #[error(
        "the deltas {} and {} both change the version {}, so there is no one result",
        Quoted(.one), Quoted(.other), Quoted(.base)
    )]
    Fork { base: String, one: String, other: String },
    /// A missing delta between two others.
    #[error(
        "a delta is missing between the versions {} and {}; the delta {} needs it",
        Quoted(.from), Quoted(.base), Quoted(.version)
    )]
    Gap { from: String, base: String, version: String },
    /// Deltas that lead back to their first version.
    #[error("the deltas lead from the version {} back to it", Quoted(.version))]
    Cycle { version: String },
    /// A delta whose base is not the result before, despite equal versions.
    #[error(
        "the delta {} does not follow the one before: the digest of the version {} should be \
         {expected}, found {found}", Quoted(.version), Quoted(.base)
    )]
    OtherBase { version: String, base: String, expected: String, found: String },

    // Versions that a publisher puts into a directory.
    /// An index with a different version than its directory.
    #[error("the directory has the version {expected}, but the index names {}", Quoted(.found))]
    OtherVersion { expected: String, found: String },
    /// A first delta from a version that is neither here nor published.
    #[error(
        "the delta {} needs the version {}, which is neither local nor published; nor is a full \
         version", Quoted(.version), Quoted(.base)
    )]
    NoBase { base: String, version: String },

    // Making a delta.
    /// A tensor too large for positions of 32 bits.
    #[error("positions of {found} bytes do not fit 32 bits: the encoding should be xor")]
    TooLargeToOverwrite { found: u64 },
    /// A delta that does not suit the set reader.
    #[error("{reader} needs {expected}, found {}", Quoted(.found))]
    NotForReader { reader: &'static str, expected: &'static str, found: String },
}

struct OrNothing<'a>(Option<&'a str>);

impl std::fmt::Display for OrNothing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(found) => Quoted(found).fmt(f),
            None => f.write_str("no such text"),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no bytes");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
