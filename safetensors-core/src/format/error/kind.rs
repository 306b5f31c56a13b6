//! [`ErrorKind`]: every way in which an operation can fail.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::found::Below;
use super::found::FoundByte;
use super::mismatch::MismatchList;
use super::text::NameList;
use super::{AdapterProblem, IndexProblem, OptimizerProblem, QuantizationProblem, RankProblem};
use super::{Escaped, JsonProblem, Mismatch, Quoted, Shape, TieProblem};
use crate::format::dtype::Dtype;

/// Every way in which an operation can fail, with the expected and the found value.
///
/// `expected` is the value by the rule, and `found` is the value in the file. Sizes and offsets are
/// in bytes. Data offsets count from the first byte after the header, as in the header itself.
///
/// Messages shorten text from outside. Fields hold names and shapes whole, and only the start of an
/// unknown word.
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
    #[error("cut off: {} of {expected} bytes of the header are missing", .expected.saturating_sub(*.found))]
    HeaderPastEnd { expected: u64, found: u64 },
    /// An edit is replacing the header, or was interrupted. Then
    /// [`edit::restore_header`](crate::edit::restore_header) restores it.
    #[error("the header is half written: it is being changed, or a change of it was interrupted")]
    TornHeader,
    /// More tensors than [`Limits`](crate::Limits) allows.
    #[error("the header has more tensors than the limit of {limit}")]
    TooManyTensors { limit: usize },
    /// A tensor has more dimensions than [`Limits`](crate::Limits) allows.
    #[error("the shape has more dimensions than the limit of {limit}")]
    TooManyDimensions { limit: usize },
    /// More entries in `__metadata__` than [`Limits`](crate::Limits) allows.
    #[error("__metadata__ has more entries than the limit of {limit}")]
    TooManyMetadataEntries { limit: usize },

    // The header's text.
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 from byte {offset} on")]
    NotUtf8 { offset: usize },
    /// The header is not a JSON object.
    #[error("the header is not a JSON object: it starts with {}", FoundByte(*.found))]
    NotAnObject { found: Option<u8> },
    /// The header is not JSON.
    #[error("the header is not JSON at byte {offset}: found {problem}")]
    Json { offset: usize, problem: JsonProblem },
    /// A value nested deeper than any field of a header.
    #[error("a value at byte {offset} of the header is nested deeper than the format allows")]
    TooDeep { offset: usize },
    /// The header has `__metadata__` twice.
    #[error("duplicate __metadata__")]
    DuplicateMetadata,
    /// `__metadata__` is not an object.
    #[error("__metadata__ should be an object, found {found}")]
    MetadataNotAnObject { found: &'static str },
    /// A value in `__metadata__` is not a string.
    #[error("the value of {} in __metadata__ should be a string, found {found}", Quoted(.key))]
    MetadataNotAString { key: String, found: &'static str },
    /// `__metadata__` has a key twice.
    #[error("duplicate key {} in __metadata__", Quoted(.key))]
    DuplicateMetadataKey { key: String },

    // One entry of the header.
    /// Two tensors have the same name.
    #[error("duplicate tensor name")]
    DuplicateTensor,
    /// An entry is not an object.
    #[error("the entry should be an object, found {found}")]
    EntryNotAnObject { found: &'static str },
    /// An entry lacks a field.
    #[error("the field {field:?} is missing")]
    MissingField { field: &'static str },
    /// An entry has a field twice.
    #[error("duplicate field {field:?}")]
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
    /// The format has no dtype of this name.
    #[error(
        "unknown dtype {}; there are BF16, F16, F32, F64, F8_E4M3, I64 and {} more",
        Quoted(.found),
        Dtype::ALL.len() - 6
    )]
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
    /// The data range has another length than the dtype and the shape need.
    #[error(
        "{dtype} of shape {} has {expected} bytes, but data_offsets span {found}",
        Shape(.shape)
    )]
    WrongSize { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// Bytes before this tensor belong to no tensor.
    #[error(
        "a hole: the data should begin at {expected}, where the previous tensor ends, \
         but begins at {found}"
    )]
    Hole { expected: u64, found: u64 },
    /// The data begins inside the data of another tensor.
    #[error("an overlap: the data begins at {found}, but {} reaches to {expected}", Quoted(.other))]
    Overlap { other: String, expected: u64, found: u64 },
    /// Two tensors that are not empty have the same range of bytes.
    #[error("the data has the bytes [{begin}, {end}], the same as {}", Quoted(.other))]
    SameRange { other: String, begin: u64, end: u64 },
    /// A tensor without bytes is neither between two tensors nor at either end of the data.
    #[error(
        "a tensor without bytes should begin where another ends, such as at {expected}, \
         but begins at {found}"
    )]
    EmptyOffBoundary { expected: u64, found: u64 },
    /// The file ends before its last tensor.
    #[error("cut off: {} of {expected} bytes of the tensors are missing", .expected.saturating_sub(*.found))]
    MissingData { expected: u64, found: u64 },
    /// The file has bytes after its last tensor.
    #[error("the tensors have {expected} bytes, but {found} follow the header")]
    TrailingData { expected: u64, found: u64 },
    /// More bytes than can be allocated at once.
    #[error("{bytes} bytes are more than can be held in memory at once")]
    TooLargeForMemory { bytes: u64 },
    /// More bytes than the budget of a [`TensorCache`](crate::framework::TensorCache).
    #[error("it takes {bytes} bytes, but the budget is {budget} bytes: raise the budget")]
    OverBudget { bytes: u64, budget: u64 },

    // Views and buffers.
    /// There is no tensor of that name.
    #[error("there is no such tensor")]
    TensorNotFound,
    /// The data has another length than the dtype and the shape need.
    #[error("{dtype} of shape {} has {expected} bytes, but the data has {found}", Shape(.shape))]
    DataLength { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// A typed access with another type than the tensor's.
    #[error("expected dtype {expected}, found {found}")]
    WrongDtype { expected: Dtype, found: Dtype },
    /// Borrowed bytes do not start where the element type may start.
    #[error(
        "the data lies at address {address:#x}, but {dtype} elements need a multiple of \
         {alignment}: copy it instead"
    )]
    Misaligned { dtype: Dtype, alignment: usize, address: usize },
    /// A BOOL byte is neither 0 nor 1.
    #[error("element {index} of a BOOL tensor should be 0 or 1, found {found}")]
    InvalidBool { index: u64, found: u8 },
    /// A borrow of little-endian data as native values on a big-endian target.
    #[error(
        "{dtype} data is little-endian and cannot be borrowed on a big-endian target: \
         copy it instead"
    )]
    BigEndian { dtype: Dtype },

    // Slices.
    /// A slice has more indices than the tensor has dimensions.
    #[error("the tensor has {ndim} dimensions, but the slice has {found} indices")]
    TooManyIndices { ndim: usize, found: usize },
    /// A position that a dimension does not have, or a reversed range: `asked`, such as `64..32`.
    #[error("the slice is out of bounds: dimension {dim} has length {len}, asked for {asked}")]
    IndexOutOfBounds { dim: usize, len: usize, asked: String },
    /// A slice has a step of 0.
    #[error("the step of dimension {dim} should be 1 or more, found 0")]
    ZeroStep { dim: usize },
    /// A slice of a sub-byte dtype begins or ends inside a byte.
    #[error("the slice begins or ends inside a byte of packed {dtype} elements")]
    SliceInsideByte { dtype: Dtype },
    /// The tensor has no such dimension.
    #[error("there is no dimension {dim} in a tensor of {ndim} dimensions")]
    NoSuchDim { dim: usize, ndim: usize },
    /// The rank is not below the world size.
    #[error("the rank should be below the world size {world_size}, found {rank}")]
    NoSuchRank { rank: usize, world_size: usize },
    /// A dimension does not divide into equal parts.
    #[error("dimension {dim} of length {len} does not divide into {world_size} equal parts")]
    UnevenParts { dim: usize, len: usize, world_size: usize },

    // Conversion and frameworks.
    /// Elements of `from` cannot be converted to `to`, see [`convert`](crate::convert).
    #[error("there is no conversion from {from} to {to}")]
    NoConversion { from: Dtype, to: Dtype },
    /// A value does not fit the dtype that it is converted to.
    #[error("the value {} of element {index} does not fit {to}", Escaped(.value))]
    DoesNotFit { index: u64, value: String, to: Dtype },
    /// The framework has no type for a dtype, and no wider one that holds its values exactly.
    #[error("{framework} has no type that holds {dtype} exactly")]
    UnsupportedDtype { framework: &'static str, dtype: Dtype },
    /// The dtype needs widening, and [`Widening::Refuse`](crate::Widening::Refuse) is set.
    #[error("{framework} has no {dtype}: it would be widened to {to}, which the options refuse")]
    WouldWiden { framework: &'static str, dtype: Dtype, to: Dtype },
    /// The framework's tensor has elements that the format has no dtype for.
    #[error("{framework} elements of type {} have no dtype in the format", Escaped(.found))]
    UnsupportedFrameworkType { framework: &'static str, found: String },
    /// The framework itself failed.
    #[error("{framework}: {source}")]
    Framework { framework: &'static str, source: Box<dyn core::error::Error + Send + Sync> },
    /// An error of another crate. [`Error::other`](super::Error::other) returns it with its type.
    #[error("{0}")]
    Other(#[source] Box<dyn core::error::Error + Send + Sync>),

    // Saving.
    /// A tensor has the name that the format reserves.
    #[error("the name __metadata__ is reserved by the format")]
    ReservedName,
    /// A tensor's source gave more or fewer bytes than its dtype and shape need.
    #[error("the source should give {expected} bytes, but gave {found}")]
    SourceLength { expected: u64, found: u64 },
    /// The alignment of the data section is not a power of two from 8 to 4096.
    #[error("the alignment should be a power of two from 8 to 4096, found {found}")]
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
        "the tensor has {expected} bytes, but only {found} were written: \
         [{begin}, {end}] are missing"
    )]
    Incomplete { expected: u64, found: u64, begin: u64, end: u64 },
    /// An earlier run was killed and left [synced](crate::save::GrowingWriter::sync) steps.
    #[error("an earlier run left synced steps in {}: resume or remove them", Escaped(.directory))]
    SyncedStepsLeft { directory: String },
    /// The [writer](crate::save::GrowingWriter) has finished its file, or was dropped.
    #[error("the file is finished, or its writer was dropped: it takes nothing more")]
    AlreadyFinished,
    /// The name of an attribute has a `#`, which ends the name of the tensor in the metadata key.
    #[error("the name of an attribute must not have '#' in it, found {}", Quoted(.found))]
    BadAttributeName { found: String },
    /// An attribute of a tensor has not the form that it should have.
    #[error("the attribute {name:?} should be {expected}, found {}", Quoted(.found))]
    BadAttribute { name: &'static str, expected: String, found: String },

    // Metadata and digests.
    /// The value of a key of the ModelSpec standard has not the standard's form.
    #[error("{} should be {expected}, found {}", Quoted(.key), Quoted(.found))]
    BadModelSpec { key: &'static str, expected: &'static str, found: String },
    /// The metadata entry that records digests is not JSON of the form it should have.
    #[error("the entry {key} in __metadata__ is malformed: {}", Escaped(.problem))]
    BadDigestRecord { key: &'static str, problem: String },
    /// A recorded digest is not hex digits of the right number.
    #[error(
        "the recorded digest should be {expected} lower-case hex digits, found {}",
        Quoted(.found)
    )]
    BadDigest { expected: usize, found: String },
    /// A digest is recorded for a tensor that the file does not have.
    #[error("a digest is recorded, but there is no such tensor")]
    DigestWithoutTensor,
    /// The data has changed since its digest was recorded.
    #[error("the data has changed: its {algorithm} should be {expected}, found {found}")]
    DigestMismatch { algorithm: &'static str, expected: String, found: String },
    /// A tensor has no recorded digest, and the options require one.
    #[error("no digest is recorded")]
    NoDigest,
    /// This crate was built without the feature that the work needs.
    #[error("this program was built without the feature {feature} of safetensors-core")]
    FeatureNeeded { feature: &'static str },

    // Files and checkpoints.
    /// The operating system failed.
    #[cfg(feature = "std")]
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The path is changed as asked, but the system failed to write that to the disk.
    #[cfg(feature = "std")]
    #[error("the path is changed as asked, but a power cut may undo that: {0}")]
    NotDurable(#[source] std::io::Error),
    /// The new checkpoint is in its place, but the system failed to remove a file of the old one.
    #[cfg(feature = "std")]
    #[error("the new checkpoint is in its place, but this old file could not be removed: {0}")]
    LeftBehind(#[source] std::io::Error),
    /// The permissions of the file let no one write to it. See
    /// [`SaveOptions::replace_read_only`](crate::SaveOptions::replace_read_only).
    #[error("the file is read-only; it is replaced only where that is asked for")]
    ReadOnlyFile,
    /// Others share it. See [`SaveOptions::replace_cached`](crate::SaveOptions::replace_cached).
    #[error(
        "the file lies in a cache of the Hub, so other programs would get what is changed here"
    )]
    InHubCache,
    /// A manifest has a digest of the file's header, and its readers refuse any other header.
    #[cfg(feature = "std")]
    #[error(
        "{} records a digest of this file's header, which would not match any more: change a copy in \
         another directory",
        .manifest.display()
    )]
    InManifest { manifest: std::path::PathBuf },
    /// A file exists that [`SaveOptions::overwrite`](crate::SaveOptions::overwrite) keeps.
    // The words of a library's own store, which programs that come from there may look for.
    #[error("File already exists; overwrite(true) replaces it")]
    FileExists,
    /// The path leads to something other than a regular file: a directory or a special file.
    #[error("expected a regular file, found {found}")]
    NotAFile { found: &'static str },
    /// A directory has no checkpoint, or several: `found`; `below` has those in subdirectories.
    #[error(
        "expected model.safetensors, an index (*.safetensors.index.json) or exactly one \
         *.safetensors file, found {}{}",
        NameList(.found), Below(.below)
    )]
    NoCheckpoint { found: Vec<String>, below: Vec<String> },
    /// The directory has other files, and would not open as the new one next to them.
    #[error(
        "{} would not be found beside {}: a directory opens as model.safetensors, its index, \
         or its only *.safetensors file; move these away",
        Escaped(.file), NameList(.others)
    )]
    NotAlone { file: String, others: Vec<String> },
    /// A selection matches none of the tensors, so there is nothing to save or to load.
    #[error("none of the {found} tensors is selected")]
    NothingSelected { found: usize },
    /// Another checkpoint replaced this one at each attempt to open it.
    #[error("another checkpoint replaced it at each of {attempts} attempts to open it")]
    KeepsChanging { attempts: u32 },
    /// Another save changes the files, and this one does not wait for it, by its
    /// [`Contention`](crate::checkpoint::Contention).
    #[error("another save is writing to this directory, or has done so since this one began")]
    DirectoryBusy,
    /// A [`GrowingWriter`](crate::save::GrowingWriter) of this path is alive, here or elsewhere.
    #[error("another writer is adding steps to this file, and must finish first")]
    FileBusy,
    /// Another writer changed the files of the directory at the same time as a save.
    #[error(
        "another writer has changed the files of this directory at the same time, and {} is not \
         what was saved: open the directory to see what is there, or save again",
        Quoted(.file)
    )]
    Overtaken { file: String },
    /// An index file is malformed.
    #[error("the index is malformed: {problem}")]
    BadIndex { problem: IndexProblem },
    /// This index belongs to a delta, which `safetensors-delta` applies. `base` is its name for its
    /// base.
    #[error(
        "it is a delta, which has no more than what changed since the checkpoint {}: apply it to \
         that checkpoint", Quoted(.base)
    )]
    IsDelta { base: String },
    /// A delta was expected: an index with `delta_encoding` in its metadata.
    #[error("expected a delta, whose index has a delta_encoding, found a whole checkpoint")]
    NotADelta,
    /// Two files that are opened as one checkpoint have a tensor of the same name.
    #[error("another file has a tensor of the same name: {}", Escaped(.other))]
    InTwoFiles { other: String },
    /// The index places a tensor in a shard that does not have it.
    #[error("the index places it in {}, which does not have it", Quoted(.shard))]
    NotInShard { shard: String },
    /// A text is not the size of a shard.
    #[error(
        "expected a number of bytes, or a number with KB, MB, GB or TB, such as 5GB; found {}",
        Quoted(.found)
    )]
    BadShardSize { found: String },
    /// A text is not a pattern for the names of a checkpoint's files.
    #[error(
        "expected a file name that has {{suffix}} in it once and ends in .safetensors, found {}",
        Quoted(.found)
    )]
    BadFilePattern { found: String },

    // Loading into a model.
    /// A checkpoint does not match the tensors in memory that it is loaded into.
    #[error("the checkpoint does not match: {}", MismatchList(.mismatches))]
    Mismatches { mismatches: Vec<Mismatch> },

    // Problems of a subject: the type of the problem says more.
    #[error("{problem}")]
    Tie {
        #[from]
        problem: TieProblem,
    },
    #[error("{problem}")]
    Ranks {
        #[from]
        problem: RankProblem,
    },
    #[error("{problem}")]
    Quantization { problem: QuantizationProblem },
    #[error("{problem}")]
    Adapter {
        #[from]
        problem: AdapterProblem,
    },
    #[error("{problem}")]
    Optimizer {
        #[from]
        problem: OptimizerProblem,
    },

    // The caller.
    /// The caller's progress callback ended the work.
    #[error("cancelled")]
    Cancelled,
}

impl ErrorKind {
    /// Returns the index of the element that it is about.
    pub(crate) fn element_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::DoesNotFit { index, .. } | Self::InvalidBool { index, .. } => Some(index),
            _ => None,
        }
    }
}
