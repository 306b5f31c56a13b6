//! [`ErrorKind`]: the errors that only this crate has, inside the library's errors.

use safetensors_core::Dtype;
use safetensors_core::framework::Quoted;
pub use safetensors_core::{Error, Result};

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

/// The errors of deltas, with the expected and the found value.
///
/// An [`Error`] has it as [`ErrorKind::Other`](safetensors_core::ErrorKind::Other), and names the
/// file and the tensor. Errors that other crates have too are kinds of the core.
///
/// Sizes and positions are in bytes. `version` is the version that a delta leads to. Messages
/// shorten text from outside, fields do not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // The index and the files of a delta.
    /// An entry in the index's metadata is missing, or has an unknown value.
    #[error("{key} in the index should be {expected}, found {}", OrNothing(.found.as_deref()))]
    BadField { key: &'static str, expected: &'static str, found: Option<String> },
    /// A file has a tensor that the index does not place in it. Some readers would apply it.
    #[error("the index does not place it in this file, but some readers would apply it")]
    Unindexed,
    /// A file of tensors is next to the index, which does not name it. Some readers would apply it.
    #[error("the index does not name this file, but some readers would apply it")]
    StrayFile,
    /// A compressed difference is not a row of bytes.
    #[error("a compressed difference should be U8 with one dimension, found {dtype} with {ndim}")]
    NotBytes { dtype: Dtype, ndim: usize },
    /// The file has no checksum of the tensor.
    #[error("__metadata__ has no checksum of it")]
    NoChecksum,
    /// The checksum is not hex digits of the right number.
    #[error("its checksum should be {expected} lower-case hex digits, found {}", Quoted(.found))]
    BadChecksum { expected: usize, found: String },
    /// The index says that the tensor is added or replaced, and no file has it.
    #[error("the index says that it is {change}, but no file has its bytes")]
    NoBytes { change: &'static str },
    /// The delta does two things to one tensor.
    #[error("the delta has it as {one} and as {other}")]
    TwoChanges { one: &'static str, other: &'static str },

    // One compressed difference.
    /// The bytes are no frame of zstd.
    #[error("it should begin as a frame of zstd does, found {}", Hex(.found))]
    NotAFrame { found: Vec<u8> },
    /// The frame is one that readers skip.
    #[error("it is a frame that readers of zstd skip, which has no content")]
    SkippableFrame,
    /// The frame needs a dictionary.
    #[error("its frame needs a dictionary")]
    NeedsDictionary,
    /// The frame needs a larger window of memory than is allowed.
    #[error("its frame needs a larger window than the limit of {limit} bytes")]
    WindowTooLarge { limit: u64 },
    /// The frame has another number of bytes than the tensor needs.
    #[error("its frame should have a content of {expected} bytes, found {found}")]
    ContentSize { expected: u64, found: u64 },
    /// The frame goes on after all bytes that the tensor needs.
    #[error("its frame should have a content of {expected} bytes, and goes on after them")]
    ContentTooLong { expected: u64 },
    /// The tensors that a delta has whole are larger than their compressed bytes and the base
    /// explain.
    #[error(
        "its whole tensors would have {found} bytes, over the limit of {limit}: the base and 1,032 \
         times the compressed bytes; publish a full version"
    )]
    TooExpanded { limit: u64, found: u64 },
    /// The frame's header lacks the size of the content, and nothing else gives it.
    #[error("its frame should say how large its content is")]
    UnknownContentSize,
    /// The bytes of the frame end before the frame does.
    #[error("its frame is cut off after {found} bytes")]
    FrameCut { found: u64 },
    /// Bytes follow the frame.
    #[error("its one frame ends at byte {end}, but {found} bytes are there")]
    AfterFrame { end: u64, found: u64 },
    /// The decompression fails.
    #[error("its frame is damaged: {problem}")]
    DamagedFrame { problem: String },
    /// More bytes differ than a tensor of `len` bytes has.
    #[error("{found} positions are to be overwritten, but the tensor has only {len} bytes")]
    TooManyPositions { len: u64, found: u64 },
    /// The positions of bytes to be overwritten do not ascend.
    #[error("position {found} to be overwritten should be above the one before it, {before}")]
    PositionOrder { before: u64, found: u64 },
    /// A position is past the tensor's end.
    #[error("position {found} to be overwritten is outside of the tensor, which has {len} bytes")]
    PositionOutside { len: u64, found: u64 },

    // A delta and a base.
    /// The base after the deltas before has no tensor of the name.
    #[error("the delta {} changes or removes it, but the base has no such tensor", Quoted(.version))]
    NotInBase { version: String },
    /// The base after the deltas before already has a tensor of the name.
    #[error("the delta {} adds it, but the base has a tensor of this name", Quoted(.version))]
    InBase { version: String },
    /// The tensor is wrong after the delta: the base is another, or the delta is damaged.
    #[error(
        "its {algorithm} after the delta {} should be {expected}, found {found}: the base is \
         another one, or the delta is damaged", Quoted(.version)
    )]
    WrongTensor { version: String, algorithm: &'static str, expected: String, found: String },
    /// The base is not the checkpoint that the delta was made of.
    #[error(
        "the delta {} was made of another base: the digest of its base is {expected}, found \
         {found}", Quoted(.version)
    )]
    WrongBase { version: String, expected: String, found: String },
    /// All changed tensors are right, but the whole checkpoint is not the delta's result.
    #[error("the digest after the delta {} should be {expected}, found {found}", Quoted(.version))]
    WrongResult { version: String, expected: String, found: String },
    /// A file of the base is not below the directory of its index.
    #[error("it does not lie below the directory of the index")]
    FileElsewhere,

    // Several deltas.
    /// There is no delta.
    #[error("expected at least one delta")]
    NoDelta,
    /// Two deltas lead to one version.
    #[error("two deltas lead to the version {}", Quoted(.version))]
    Twice { version: String },
    /// Two deltas change one version.
    #[error(
        "the deltas {} and {} both change the version {}, so there is no one result",
        Quoted(.one), Quoted(.other), Quoted(.base)
    )]
    Fork { base: String, one: String, other: String },
    /// No delta leads from one of the others to the next.
    #[error(
        "no delta leads from {} to {}, which the delta {} changes",
        Quoted(.from), Quoted(.base), Quoted(.version)
    )]
    Gap { from: String, base: String, version: String },
    /// Deltas lead back to the version that they begin with.
    #[error("the deltas lead from the version {} back to it", Quoted(.version))]
    Cycle { version: String },
    /// The result of a delta is not the base of the next, although their versions are the same.
    #[error(
        "the delta {} was made of another version {} than the delta before it leads to: the \
         digest of its base is {expected}, found {found}", Quoted(.version), Quoted(.base)
    )]
    OtherBase { version: String, base: String, expected: String, found: String },

    // Versions that a publisher puts into a directory.
    /// The index of a version names another one than its directory does.
    #[error("the directory is that of the version {expected}, but the index names {}", Quoted(.found))]
    OtherVersion { expected: String, found: String },
    /// The first of the deltas changes a version that is neither here nor published.
    #[error(
        "the delta {} changes the version {}, which is neither here nor published, and no full \
         version is", Quoted(.version), Quoted(.base)
    )]
    NoBase { base: String, version: String },

    // Making a delta.
    /// A tensor is too large for positions of 32 bits.
    #[error("positions of {found} bytes do not fit 32 bits: the encoding should be xor")]
    TooLargeToOverwrite { found: u64 },
    /// The reader that the delta is made for would not take it.
    #[error("{reader} needs {expected}, found {}", Quoted(.found))]
    NotForReader { reader: &'static str, expected: &'static str, found: String },
}

/// A value in the index, if it is a string.
struct OrNothing<'a>(Option<&'a str>);

impl std::fmt::Display for OrNothing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(found) => Quoted(found).fmt(f),
            None => f.write_str("no such text"),
        }
    }
}

/// The first bytes of something that is no frame.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no bytes");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
