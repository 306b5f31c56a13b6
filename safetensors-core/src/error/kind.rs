//! [`ErrorKind`]: every way in which an operation can fail.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

#[cfg(feature = "std")]
use super::IndexProblem;
use super::text::NameList;
use super::{Escaped, JsonProblem, Quoted, Shape};
use crate::dtype::Dtype;

/// Every way in which an operation can fail, with what was expected and what was found.
///
/// `expected` and `found` are what the rule asks for and what is there. Sizes and offsets are in
/// bytes; data offsets count from the first byte after the header, as they do in the header.
/// Messages shorten names, shapes and other text from outside. Fields hold names and shapes whole,
/// and of text that stands where a known word should no more than shows what it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // The frame of the file.
    /// The file is shorter than the 8 bytes of the header length.
    #[error("expected at least 8 bytes for the header length, found {found}")]
    TooShort { found: u64 },
    /// The header is longer than [`Limits`](crate::Limits) allows.
    #[error("the header has {found} bytes, over the limit of {limit}")]
    HeaderTooLarge { limit: u64, found: u64 },
    /// The header length points past the end of the file.
    #[error("the header should have {expected} bytes, but only {found} follow its length")]
    HeaderPastEnd { expected: u64, found: u64 },
    /// An edit is writing another header over the one that the file has, or was interrupted while
    /// it did. In the second case [`edit::recover`](crate::edit::recover) restores the header.
    #[error("the header is half written: it is being changed, or a change of it was interrupted")]
    TornHeader,
    /// More tensors than [`Limits`](crate::Limits) allows.
    #[error("the header has more than {limit} tensors, the limit")]
    TooManyTensors { limit: usize },
    /// A tensor has more dimensions than [`Limits`](crate::Limits) allows.
    #[error("the shape has more than {limit} dimensions, the limit")]
    TooManyDimensions { limit: usize },
    /// More entries in `__metadata__` than [`Limits`](crate::Limits) allows.
    #[error("__metadata__ has more than {limit} entries, the limit")]
    TooManyMetadataEntries { limit: usize },

    // The header's text.
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 from its byte {offset}")]
    NotUtf8 { offset: usize },
    /// The header is not a JSON object.
    #[error("the header is not a JSON object: it starts with {}", Found(*.found))]
    NotAnObject { found: Option<u8> },
    /// The header is not JSON.
    #[error("the header is not JSON: at its byte {offset} stands {problem}")]
    Json { offset: usize, problem: JsonProblem },
    /// A value nested deeper than any field of a header.
    #[error("a value is nested deeper than a header needs, at the header's byte {offset}")]
    TooDeep { offset: usize },
    /// `__metadata__` stands twice.
    #[error("a second __metadata__")]
    DuplicateMetadata,
    /// `__metadata__` is not an object.
    #[error("__metadata__ should be an object, found {found}")]
    MetadataNotAnObject { found: &'static str },
    /// A value in `__metadata__` is not a string.
    #[error("the value of {} in __metadata__ should be a string, found {found}", Quoted(.key))]
    MetadataNotAString { key: String, found: &'static str },
    /// A key stands twice in `__metadata__`.
    #[error("the key {} stands twice in __metadata__", Quoted(.key))]
    DuplicateMetadataKey { key: String },

    // One entry of the header.
    /// Two tensors have one name.
    #[error("the name stands twice")]
    DuplicateTensor,
    /// An entry is not an object.
    #[error("the entry should be an object, found {found}")]
    EntryNotAnObject { found: &'static str },
    /// An entry lacks a field.
    #[error("the field {field:?} is missing")]
    MissingField { field: &'static str },
    /// An entry has a field twice.
    #[error("the field {field:?} stands twice")]
    DuplicateField { field: &'static str },
    /// An entry has a field that the format does not define.
    #[error("the field {} is unknown; a tensor has dtype, shape and data_offsets", Quoted(.found))]
    UnknownField { found: String },
    /// A field holds the wrong kind of value.
    #[error("{field} should be {expected}, found {found}")]
    WrongType { field: &'static str, expected: &'static str, found: &'static str },
    /// A number is not an unsigned 64-bit integer in plain digits.
    #[error("{field} should hold unsigned 64-bit integers in plain digits, found {found}")]
    BadNumber { field: &'static str, found: String },
    /// The dtype is none of the format's.
    #[error("unknown dtype {}", Quoted(.found))]
    UnknownDtype { found: String },

    // Sizes and offsets.
    /// The product of a shape's non-zero dimensions, or its size in bytes, does not fit 64 bits.
    #[error("the size of shape {} overflows 64 bits", Shape(.shape))]
    ShapeOverflow { shape: Vec<usize> },
    /// The elements of a sub-byte dtype do not fill whole bytes.
    #[error("{dtype} elements of shape {} do not fill whole bytes", Shape(.shape))]
    PartialByte { dtype: Dtype, shape: Vec<usize> },
    /// The data range ends before it begins.
    #[error("data_offsets [{begin}, {end}] end before they begin")]
    ReversedOffsets { begin: u64, end: u64 },
    /// The data range is not as long as dtype and shape ask for.
    #[error("{dtype} of shape {} has {expected} bytes, but data_offsets span {found}", Shape(.shape))]
    WrongSize { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// Bytes that belong to no tensor before this one.
    #[error(
        "a hole: the data should begin at {expected}, where the tensor before ends, but begins at {found}"
    )]
    Hole { expected: u64, found: u64 },
    /// The data begins inside another tensor's.
    #[error("an overlap: the data begins at {found}, but {} reaches to {expected}", Quoted(.other))]
    Overlap { other: String, expected: u64, found: u64 },
    /// Two tensors that are not empty lie on one range.
    #[error("the data lies on bytes [{begin}, {end}], the same as {}", Quoted(.other))]
    SameRange { other: String, begin: u64, end: u64 },
    /// A tensor without bytes lies elsewhere than between two tensors or at either end.
    #[error(
        "a tensor without bytes should lie where another ends, such as {expected}, but lies at {found}"
    )]
    EmptyOffBoundary { expected: u64, found: u64 },
    /// The file ends before its last tensor.
    #[error("the tensors have {expected} bytes, but only {found} follow the header")]
    MissingData { expected: u64, found: u64 },
    /// The file has bytes after its last tensor.
    #[error("the tensors have {expected} bytes, but {found} follow the header")]
    TrailingData { expected: u64, found: u64 },
    /// More bytes than can be allocated at once.
    #[error("{bytes} bytes are more than can be held in memory at once")]
    TooLargeForMemory { bytes: u64 },

    // Views and buffers.
    /// There is no tensor of that name.
    #[error("there is no such tensor")]
    TensorNotFound,
    /// Data is not as long as dtype and shape ask for.
    #[error("{dtype} of shape {} has {expected} bytes, but the data has {found}", Shape(.shape))]
    DataLength { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// A typed access with another type than the tensor's.
    #[error("expected dtype {expected}, found {found}")]
    WrongDtype { expected: Dtype, found: Dtype },
    /// Borrowed bytes do not start where the element type may start.
    #[error(
        "the data lies at address {address:#x}, but {dtype} elements need a multiple of {alignment}: copy it instead"
    )]
    Misaligned { dtype: Dtype, alignment: usize, address: usize },
    /// A BOOL byte is neither 0 nor 1.
    #[error("element {index} of a BOOL tensor should be 0 or 1, found {found}")]
    InvalidBool { index: u64, found: u8 },
    /// A borrow of little-endian data as native values on a big-endian target.
    #[error(
        "{dtype} data is little-endian and cannot be borrowed on a big-endian target: copy it instead"
    )]
    BigEndian { dtype: Dtype },

    // Slices.
    /// A slice has more indices than the tensor has dimensions.
    #[error("the tensor has {ndim} dimensions, but the slice has {found} indices")]
    TooManyIndices { ndim: usize, found: usize },
    /// A slice takes a position that a dimension does not have, or a range that ends before it
    /// begins.
    #[error("the slice is out of bounds: dimension {dim} has length {len}, found {index}")]
    IndexOutOfBounds { dim: usize, len: usize, index: isize },
    /// A slice takes every 0th position.
    #[error("the step of dimension {dim} should be 1 or more, found 0")]
    ZeroStep { dim: usize },
    /// A slice of a sub-byte dtype begins or ends inside a byte.
    #[error("the slice begins or ends inside a byte of packed {dtype} elements")]
    SliceInsideByte { dtype: Dtype },
    /// The tensor has no such dimension.
    #[error("there is no dimension {dim} in a tensor of {ndim} dimensions")]
    NoSuchDim { dim: usize, ndim: usize },
    /// The rank is not one of the world's.
    #[error("the rank should be below the world size {world_size}, found {rank}")]
    NoSuchRank { rank: usize, world_size: usize },
    /// A dimension does not divide into equal parts.
    #[error("dimension {dim} of length {len} does not divide into {world_size} equal parts")]
    UnevenParts { dim: usize, len: usize, world_size: usize },

    // Conversion and frameworks.
    /// Elements of one dtype cannot be converted to the other, see [`convert`](crate::convert).
    #[error("there is no conversion from {from} to {to}")]
    NoConversion { from: Dtype, to: Dtype },
    /// A value does not fit the dtype it should become.
    #[error("the value {} of element {index} does not fit {to}", Escaped(.value))]
    DoesNotFit { index: u64, value: String, to: Dtype },
    /// The framework has no type for a dtype, and no wider one that holds its values exactly.
    #[error("{framework} has no type that holds {dtype} exactly")]
    UnsupportedDtype { framework: &'static str, dtype: Dtype },
    /// The framework would have to widen, and the caller allowed exact dtypes only.
    #[error("{framework} has no {dtype}; it would become {to}, which exact loading does not allow")]
    WouldWiden { framework: &'static str, dtype: Dtype, to: Dtype },
    /// The framework's tensor has elements that the format has no dtype for.
    #[error("{framework} elements of type {} have no dtype in the format", Escaped(.found))]
    UnsupportedFrameworkType { framework: &'static str, found: String },
    /// The framework itself failed.
    #[error("{framework}: {source}")]
    Framework { framework: &'static str, source: Box<dyn core::error::Error + Send + Sync> },

    // Saving.
    /// A tensor has the name that the format reserves.
    #[error("the name __metadata__ is reserved by the format")]
    ReservedName,
    /// The data of a tensor is not what its source said it would be.
    #[error("the tensor should give {expected} bytes, but gave {found}")]
    SourceLength { expected: u64, found: u64 },
    /// The alignment of the data section is not a power of two from 8 to 4096.
    #[error("the data can be aligned to a power of two from 8 to 4096, not to {found}")]
    BadAlignment { found: usize },
    /// The tensor's source has another shape than was declared.
    #[error("expected shape {}, found {}", Shape(.expected), Shape(.found))]
    WrongShape { expected: Vec<usize>, found: Vec<usize> },
    /// Bytes beyond the tensor's end were written.
    #[error("the tensor has {expected} bytes, but a write reaches to {found}")]
    WrittenPastEnd { expected: u64, found: u64 },
    /// Bytes of a tensor were written a second time.
    #[error("bytes [{begin}, {end}] of the tensor have been written already")]
    WrittenTwice { begin: u64, end: u64 },
    /// Bytes of a tensor were never written; the range is the first that is missing.
    #[error(
        "the tensor has {expected} bytes, but only {found} were written: [{begin}, {end}] are missing"
    )]
    Incomplete { expected: u64, found: u64, begin: u64, end: u64 },

    /// An earlier run has left steps that it synced, which a new file at the same path would make
    /// obsolete. See [`GrowingWriter::sync`](crate::save::GrowingWriter::sync).
    #[cfg(feature = "std")]
    #[error(
        "an earlier run left the steps that it synced in {}: recover them, or remove that directory",
        Escaped(.directory)
    )]
    SyncedStepsLeft { directory: String },
    /// The name of an attribute has the character that divides it from the name of the tensor.
    #[error("the name of an attribute must not have '#' in it, found {}", Quoted(.found))]
    BadAttributeName { found: String },

    // Metadata and digests.
    /// A key of the model standard is missing, or its value does not have the form that the
    /// standard asks for.
    #[error("{} should be {expected}, {}", Quoted(.key), OrMissing(.found.as_deref()))]
    BadModelSpec { key: String, expected: &'static str, found: Option<String> },
    /// The metadata entry that records digests is not JSON of the form it should have.
    #[error("the entry {key} in __metadata__ is malformed: {}", Escaped(.problem))]
    BadDigestRecord { key: &'static str, problem: String },
    /// What is recorded as a digest is none.
    #[error("the recorded digest should be {expected} lower-case hex digits, found {}", Quoted(.found))]
    BadDigest { expected: usize, found: String },
    /// A digest is recorded of a tensor that is not there.
    #[error("a digest is recorded, but there is no such tensor")]
    DigestWithoutTensor,
    /// Data is not what it was when its digest was recorded.
    #[error("the data has changed: its {algorithm} should be {expected}, found {found}")]
    DigestMismatch { algorithm: &'static str, expected: String, found: String },
    /// No digest of a tensor is recorded, and the caller asked that there be one.
    #[error("no digest is recorded")]
    NoDigest,

    // Progress.
    /// The caller's progress callback ended a load, a save, or the computing or checking of
    /// digests.
    #[cfg(feature = "std")]
    #[error("cancelled")]
    Cancelled,

    // Files and checkpoints.
    /// The operating system failed.
    #[cfg(feature = "std")]
    #[error("{0}")]
    Io(#[source] std::io::Error),
    /// The new file is in its place, but the system failed to write the file's name to the disk, so
    /// a power cut may bring back what the path had before.
    #[cfg(feature = "std")]
    #[error("the new file is in its place, but a power cut may undo that: {0}")]
    NotDurable(#[source] std::io::Error),
    /// The new checkpoint is in its place, but the system failed to remove a file of the earlier
    /// one.
    #[cfg(feature = "std")]
    #[error("the new checkpoint is in its place, but this old file could not be removed: {0}")]
    LeftBehind(#[source] std::io::Error),
    /// By its permissions nobody may write to the file. Saving replaces it only if
    /// [`SaveOptions::replace_read_only`](crate::SaveOptions::replace_read_only) says so.
    #[cfg(feature = "std")]
    #[error("the file is read-only; it is replaced only where that is asked for")]
    ReadOnlyFile,
    /// The path leads to something else than a regular file: to a directory, where a file was to be
    /// read or written, or to a FIFO, a device or another special file.
    #[cfg(feature = "std")]
    #[error("expected a regular file, found {found}")]
    NotAFile { found: &'static str },
    /// A directory without a checkpoint, or with several: `found` are the files and indexes in it,
    /// `below` those in the directories in it.
    #[cfg(feature = "std")]
    #[error(
        "expected model.safetensors, an index (*.safetensors.index.json) or exactly one \
         *.safetensors file, found {}{}",
        NameList(.found), Below(.below)
    )]
    NoCheckpoint { found: Vec<String>, below: Vec<String> },
    /// A directory has other files, beside which a new one of one checkpoint would not be found.
    #[cfg(feature = "std")]
    #[error(
        "{} would not be found beside {}: a directory opens as model.safetensors, its index, \
         or its only *.safetensors file; move these away",
        Escaped(.file),
        NameList(.others)
    )]
    NotAlone { file: String, others: Vec<String> },
    /// A selection leaves nothing of the tensors that there are, so there is nothing to be saved.
    #[cfg(feature = "std")]
    #[error("none of the {found} tensors is selected, so there is nothing to save")]
    NothingSelected { found: usize },
    /// The checkpoint was replaced by another one each time that it was opened.
    #[cfg(feature = "std")]
    #[error(
        "it was replaced by another checkpoint each of the {attempts} times that it was opened"
    )]
    KeepsChanging { attempts: u32 },
    /// Another save is changing the files of the directory, or has changed them since this one
    /// began, and this one was told not to wait for others.
    #[cfg(feature = "std")]
    #[error("another save is writing to this directory, or has done so since this one began")]
    DirectoryBusy,
    /// Another writer changed the files of the directory while a save did.
    #[cfg(feature = "std")]
    #[error(
        "another writer has changed the files of this directory at the same time, and {} is not \
         what was saved: they may be a mixture of both, so save again",
        Quoted(.file)
    )]
    Overtaken { file: String },
    /// An index file that does not say what an index must say.
    #[cfg(feature = "std")]
    #[error("the index is malformed: {problem}")]
    BadIndex { problem: IndexProblem },
    /// The index sends a tensor to a shard that does not have it.
    #[cfg(feature = "std")]
    #[error("the index says it is in {}, which does not have it", Quoted(.shard))]
    NotInShard { shard: String },
    /// Text that is no size for a shard.
    #[cfg(feature = "std")]
    #[error(
        "a size is a number of bytes, or a number with KB, MB, GB or TB, such as 5GB; found {}",
        Quoted(.found)
    )]
    BadShardSize { found: String },
    /// Text that is no pattern for the names of a checkpoint's files.
    #[cfg(feature = "std")]
    #[error(
        "a file pattern is a file name with {{suffix}} in it once and .safetensors at its end, found {}", Quoted(.found)
    )]
    BadFilePattern { found: String },

    // Tied weights.
    /// None of the tensors that share a storage fills it, so none can be saved for all of them.
    #[error("none of the tensors in its storage fills the storage: {}; copy them, or save views as tensors of their own", NameList(.names))]
    NotCovered { names: Vec<String> },
    /// A tensor shares the storage of another without being the same tensor.
    #[error(
        "it shares the storage of {}, but has another dtype, shape or place in it; copy it, or save views as tensors of their own",
        Quoted(.kept)
    )]
    PartlyTied { kept: String },
    /// The metadata entry that should record a dropped name is there with another value.
    #[error("it should be recorded in the metadata as another name of {}, but the entry is there: {}", Quoted(.kept), Quoted(.found))]
    TieNotRecorded { kept: String, found: String },
    /// A dropped name is a metadata key that means something else.
    #[error(
        "it should be recorded in the metadata as another name of {}, but that key has a meaning of its own: keep this name, or rename it",
        Quoted(.kept)
    )]
    TieReserved { kept: String },
}

/// The first byte of something, or that there is none.
pub(super) struct Found(pub(super) Option<u8>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(byte) if byte.is_ascii_graphic() => write!(f, "{:?}", char::from(byte)),
            Some(byte) => write!(f, "the byte {byte:#04x}"),
            None => f.write_str("nothing but white space"),
        }
    }
}

/// What lies below a directory, as the end of a sentence; nothing if there is nothing.
#[cfg(feature = "std")]
struct Below<'a>(&'a [String]);

#[cfg(feature = "std")]
impl fmt::Display for Below<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; below it: {}", NameList(self.0)) }
    }
}

/// What was found, or that there was nothing.
struct OrMissing<'a>(Option<&'a str>);

impl fmt::Display for OrMissing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(found) => write!(f, "found {}", Quoted(found)),
            None => f.write_str("but is missing"),
        }
    }
}
