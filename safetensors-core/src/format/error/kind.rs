//! [`ErrorKind`]: every way to fail.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::found::Below;
use super::found::FoundByte;
use super::mismatch::MismatchList;
use super::text::NameList;
use super::{
    AdapterProblem, ExpertProblem, IndexProblem, OptimizerProblem, QuantizationProblem, RankProblem,
};
use super::{Escaped, JsonProblem, Mismatch, Quoted, Shape, TieProblem};
use crate::format::dtype::Dtype;

/// Every way in which an operation can fail.
///
/// `expected` follows from the rule, and `found` is in the file. Sizes and offsets are in bytes;
/// data offsets count from the end of the header. Fields hold names and shapes whole, and unknown
/// words cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // The frame of the file.
    /// Fewer than the 8 bytes of the header length.
    #[error("too short for a safetensors file: expected at least 8 bytes, found {found}")]
    TooShort { found: u64 },
    /// A header over [`Limits`](crate::Limits).
    #[error("the header has {found} bytes, over the limit of {limit}")]
    HeaderTooLarge { limit: u64, found: u64 },
    /// A cut header.
    #[error("cut off: {} of {expected} bytes of the header are missing", .expected.saturating_sub(*.found))]
    HeaderPastEnd { expected: u64, found: u64 },
    /// An edit in place is under way, or was interrupted: see
    /// [`edit::restore_header`](crate::edit::restore_header).
    #[error("the header is half written: an edit is in progress, or was interrupted")]
    TornHeader,
    /// Tensors over [`Limits`](crate::Limits).
    #[error("the header has more tensors than the limit of {limit}")]
    TooManyTensors { limit: usize },
    /// Dimensions over [`Limits`](crate::Limits).
    #[error("the shape has more dimensions than the limit of {limit}")]
    TooManyDimensions { limit: usize },
    /// Metadata over [`Limits`](crate::Limits).
    #[error("__metadata__ has more entries than the limit of {limit}")]
    TooManyMetadataEntries { limit: usize },

    // The header's text.
    /// A header that is not UTF-8.
    #[error("the header is not UTF-8 from byte {offset} on")]
    NotUtf8 { offset: usize },
    /// A header that is not an object.
    #[error("the header is not a JSON object: expected '{{', found {}", FoundByte(*.found))]
    NotAnObject { found: Option<u8> },
    /// A header that is not JSON.
    #[error("the header is not JSON at byte {offset}: found {problem}")]
    Json { offset: usize, problem: JsonProblem },
    /// A value nested too deep.
    #[error("a value at byte {offset} of the header is nested deeper than the format allows")]
    TooDeep { offset: usize },
    /// `__metadata__` occurs twice.
    #[error("duplicate __metadata__")]
    DuplicateMetadata,
    /// `__metadata__` is not an object.
    #[error("__metadata__ should be an object, found {found}")]
    MetadataNotAnObject { found: &'static str },
    /// A metadata value is not a string.
    #[error("the value of {} in __metadata__ should be a string, found {found}", Quoted(.key))]
    MetadataNotAString { key: String, found: &'static str },
    /// A metadata key occurs twice.
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
    /// An entry has an unknown field.
    #[error("the field {} is unknown; a tensor has dtype, shape and data_offsets", Quoted(.found))]
    UnknownField { found: String },
    /// A field has the wrong JSON type.
    #[error("{field} should be {expected}, found {found}")]
    WrongType { field: &'static str, expected: &'static str, found: &'static str },
    /// Not a plain unsigned 64-bit integer.
    #[error("{field} should hold unsigned 64-bit integers in plain digits, found {found}")]
    BadNumber { field: &'static str, found: String },
    /// Not the name of a dtype.
    #[error(
        "unknown dtype {}; there are BF16, F16, F32, F64, F8_E4M3, I64 and {} more",
        Quoted(.found),
        Dtype::ALL.len() - 6
    )]
    UnknownDtype { found: String },

    // Sizes and offsets.
    /// The number of elements or bytes does not fit 64 bits.
    #[error("the size of shape {} overflows 64 bits", Shape(.shape))]
    ShapeOverflow { shape: Vec<usize> },
    /// Sub-byte elements that do not fill whole bytes.
    #[error("{dtype} elements of shape {} do not fill whole bytes", Shape(.shape))]
    PartialByte { dtype: Dtype, shape: Vec<usize> },
    /// A range that ends before it begins.
    #[error("data_offsets [{begin}, {end}] end before they begin")]
    ReversedOffsets { begin: u64, end: u64 },
    /// A range of another length than dtype and shape need.
    #[error(
        "{dtype} of shape {} has {expected} bytes, but data_offsets span {found}",
        Shape(.shape)
    )]
    WrongSize { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// Bytes before this tensor that are no tensor's.
    #[error(
        "a hole: the data should begin at {expected}, where the previous tensor ends, \
         but begins at {found}"
    )]
    Hole { expected: u64, found: u64 },
    /// The data begins inside another tensor.
    #[error("an overlap: the data begins at {found}, but {} ends at {expected}", Quoted(.other))]
    Overlap { other: String, expected: u64, found: u64 },
    /// Two tensors have the same range.
    #[error("an overlap: data_offsets [{begin}, {end}] are the same as {}'s", Quoted(.other))]
    SameRange { other: String, begin: u64, end: u64 },
    /// An empty tensor that is neither between two others nor at an end of the data.
    #[error(
        "an empty tensor should begin where another ends, such as at {expected}, \
         but begins at {found}"
    )]
    EmptyOffBoundary { expected: u64, found: u64 },
    /// The file ends inside the data.
    #[error("cut off: {} of {expected} bytes of the tensors are missing", .expected.saturating_sub(*.found))]
    MissingData { expected: u64, found: u64 },
    /// Bytes after the last tensor.
    #[error("trailing data: the tensors have {expected} bytes, but {found} follow the header")]
    TrailingData { expected: u64, found: u64 },
    /// Larger than one allocation can be.
    #[error("{bytes} bytes do not fit in memory")]
    TooLargeForMemory { bytes: u64 },
    /// More bytes than the budget of a [`TensorCache`](crate::framework::TensorCache).
    #[error("it takes {bytes} bytes, but the budget is {budget} bytes: raise the budget")]
    OverBudget { bytes: u64, budget: u64 },

    // Views and buffers.
    /// No tensor of that name.
    #[error("there is no such tensor")]
    TensorNotFound,
    /// Data of another length than dtype and shape need.
    #[error("{dtype} of shape {} has {expected} bytes, but the data has {found}", Shape(.shape))]
    DataLength { dtype: Dtype, shape: Vec<usize>, expected: u64, found: u64 },
    /// Typed access with another type.
    #[error("expected dtype {expected}, found {found}")]
    WrongDtype { expected: Dtype, found: Dtype },
    /// Borrowed bytes that are not aligned.
    #[error(
        "the data is at address {address:#x}, but {dtype} elements need a multiple of \
         {alignment}: copy it instead"
    )]
    Misaligned { dtype: Dtype, alignment: usize, address: usize },
    /// A BOOL byte is neither 0 nor 1.
    #[error("element {index} of a BOOL tensor should be 0 or 1, found {found}")]
    InvalidBool { index: u64, found: u8 },
    /// A native borrow of little-endian data on a big-endian target.
    #[error(
        "{dtype} data is little-endian and cannot be borrowed on a big-endian target: \
         copy it instead"
    )]
    BigEndian { dtype: Dtype },

    // Slices.
    /// More indices than dimensions.
    #[error("the tensor has {ndim} dimensions, but the slice has {found} indices")]
    TooManyIndices { ndim: usize, found: usize },
    /// A position outside the dimension, or a reversed range: `asked`, such as `64..32`.
    #[error("the slice is out of bounds: dimension {dim} has length {len}, asked for {asked}")]
    IndexOutOfBounds { dim: usize, len: usize, asked: String },
    /// A step of 0.
    #[error("the step of dimension {dim} should be 1 or more, found 0")]
    ZeroStep { dim: usize },
    /// A slice cuts a byte.
    #[error("the slice begins or ends inside a byte of packed {dtype} elements")]
    SliceInsideByte { dtype: Dtype },
    /// A tensor is [arranged](crate::checkpoint::Arranged) of no other.
    #[error("a stack or a row needs at least one tensor")]
    NoMembers,
    /// The tensor has no such dimension.
    #[error("there is no dimension {dim} in a tensor of {ndim} dimensions")]
    NoSuchDim { dim: usize, ndim: usize },
    /// The rank is too large.
    #[error("the rank should be below the world size {world_size}, found {rank}")]
    NoSuchRank { rank: usize, world_size: usize },
    /// The dimension has no equal parts.
    #[error("dimension {dim} of length {len} does not divide into {world_size} equal parts")]
    UnevenParts { dim: usize, len: usize, world_size: usize },

    // Conversion and frameworks.
    /// No conversion, see [`convert`](crate::convert).
    #[error("there is no conversion from {from} to {to}")]
    NoConversion { from: Dtype, to: Dtype },
    /// A value does not fit the new dtype.
    #[error("the value {} of element {index} does not fit {to}", Escaped(.value))]
    DoesNotFit { index: u64, value: String, to: Dtype },
    /// The framework has neither the dtype nor a wider one with its values.
    #[error("{framework} has no type that holds {dtype} exactly")]
    UnsupportedDtype { framework: &'static str, dtype: Dtype },
    /// Widening, against [`Widening::Refuse`](crate::Widening::Refuse).
    #[error("{framework} has no {dtype}: it would be widened to {to}, which the options refuse")]
    WouldWiden { framework: &'static str, dtype: Dtype, to: Dtype },
    /// The format lacks the framework's dtype.
    #[error("the format has no dtype for {framework} elements of type {}", Escaped(.found))]
    UnsupportedFrameworkType { framework: &'static str, found: String },
    /// The framework itself failed.
    #[error("{framework}: {source}")]
    Framework { framework: &'static str, source: Box<dyn core::error::Error + Send + Sync> },
    /// An error of another crate: see [`Error::other`](super::Error::other).
    #[error("{0}")]
    Other(#[source] Box<dyn core::error::Error + Send + Sync>),

    // Saving.
    /// A tensor has the name `__metadata__`.
    #[error("the name __metadata__ is reserved by the format")]
    ReservedName,
    /// A source gave too many or too few bytes.
    #[error("the source should give {expected} bytes, but gave {found}")]
    SourceLength { expected: u64, found: u64 },
    /// Not a power of two from 8 to 4096.
    #[error("the alignment should be a power of two from 8 to 4096, found {found}")]
    BadAlignment { found: usize },
    /// A source with another shape than declared.
    #[error("expected shape {}, found {}", Shape(.expected), Shape(.found))]
    WrongShape { expected: Vec<usize>, found: Vec<usize> },
    /// A write beyond the tensor's end.
    #[error("the tensor has {expected} bytes, but a write reaches to {found}")]
    WrittenPastEnd { expected: u64, found: u64 },
    /// Bytes written a second time.
    #[error("bytes [{begin}, {end}] of the tensor have been written already")]
    WrittenTwice { begin: u64, end: u64 },
    /// Bytes never written: the first range.
    #[error(
        "the tensor has {expected} bytes, but only {found} were written: \
         [{begin}, {end}] are missing"
    )]
    Incomplete { expected: u64, found: u64, begin: u64, end: u64 },
    /// A killed run has left [synced](crate::save::GrowingWriter::sync) steps.
    #[error("an earlier run left synced steps in {}: resume or remove them", Escaped(.directory))]
    SyncedStepsLeft { directory: String },
    /// The [writer](crate::save::GrowingWriter) has finished its file, or was dropped.
    #[error("the file is finished, or its writer was dropped: it takes nothing more")]
    AlreadyFinished,
    /// The name of an attribute has a `#`.
    #[error("the name of an attribute must not have '#' in it, found {}", Quoted(.found))]
    BadAttributeName { found: String },
    /// An attribute has another form than expected.
    #[error("the attribute {name:?} should be {expected}, found {}", Quoted(.found))]
    BadAttribute { name: &'static str, expected: String, found: String },

    // Metadata and digests.
    /// A value has another form than ModelSpec's.
    #[error("{} should be {expected}, found {}", Quoted(.key), Quoted(.found))]
    BadModelSpec { key: &'static str, expected: &'static str, found: String },
    /// The record of digests has another form than expected.
    #[error("the entry {key} in __metadata__ is malformed: {}", Escaped(.problem))]
    BadDigestRecord { key: &'static str, problem: String },
    /// Not the right number of hex digits.
    #[error(
        "the recorded digest should be {expected} lower-case hex digits, found {}",
        Quoted(.found)
    )]
    BadDigest { expected: usize, found: String },
    /// A digest without its tensor.
    #[error("a digest is recorded, but there is no such tensor")]
    DigestWithoutTensor,
    /// The data has changed since its digest was recorded.
    #[error("the data has changed: its {algorithm} should be {expected}, found {found}")]
    DigestMismatch { algorithm: &'static str, expected: String, found: String },
    /// No digest, although the options require one.
    #[error("no digest is recorded")]
    NoDigest,
    /// The crate was built without this feature.
    #[error("this program was built without the feature {feature} of safetensors-core")]
    FeatureNeeded { feature: &'static str },

    // Files and checkpoints.
    /// The operating system failed.
    #[cfg(feature = "std")]
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The path has changed, but may not survive a power cut.
    #[cfg(feature = "std")]
    #[error("the path has changed as requested, but a power cut may undo that: {0}")]
    NotDurable(#[source] std::io::Error),
    /// The new checkpoint is in place, but an old file stays.
    #[cfg(feature = "std")]
    #[error("the new checkpoint is in place, but this old file could not be removed: {0}")]
    LeftBehind(#[source] std::io::Error),
    /// The file is read-only. See
    /// [`SaveOptions::replace_read_only`](crate::SaveOptions::replace_read_only).
    #[error("the file is read-only, and the options do not allow replacing it")]
    ReadOnlyFile,
    /// The file is in a shared cache. See
    /// [`SaveOptions::replace_cached`](crate::SaveOptions::replace_cached).
    #[error("the file is in a cache of the Hub, and other programs would see the change")]
    InHubCache,
    /// `manifest` has a digest of this header.
    #[cfg(feature = "std")]
    #[error(
        "the manifest {} has a digest of this file's header, which would not match: change a copy, \
         or save, in another directory",
        .manifest.display()
    )]
    InManifest { manifest: std::path::PathBuf },
    /// A file exists that [`SaveOptions::overwrite`](crate::SaveOptions::overwrite) keeps.
    // The words of a library's own store, which programs that come from there may look for.
    #[error("File already exists; overwrite(true) replaces it")]
    FileExists,
    /// A directory or a special file.
    #[error("expected a regular file, found {found}")]
    NotAFile { found: &'static str },
    /// No checkpoint, or several: `found`. `below` has those in subdirectories.
    #[error(
        "expected model.safetensors, an index (*.safetensors.index.json) or exactly one \
         *.safetensors file, found {}{}",
        NameList(.found), Below(.below)
    )]
    NoCheckpoint { found: Vec<String>, below: Vec<String> },
    /// Next to `others`, the new file would not be found.
    #[error(
        "{} would not be found next to {}: a directory opens as model.safetensors, its index, \
         or its only *.safetensors file; move the others away",
        Escaped(.file), NameList(.others)
    )]
    NotAlone { file: String, others: Vec<String> },
    /// A selection matches no tensor.
    #[error("none of the {found} tensors is selected")]
    NothingSelected { found: usize },
    /// Another checkpoint replaced this one at each attempt.
    #[error("another checkpoint replaced it during each of {attempts} attempts to open it")]
    KeepsChanging { attempts: u32 },
    /// Another save changes the files. See [`Contention`](crate::checkpoint::Contention).
    #[error("another save is writing to this directory, or has done so since this one began")]
    DirectoryBusy,
    /// A [`GrowingWriter`](crate::save::GrowingWriter) of this path is alive anywhere.
    #[error("another writer is adding steps to this file, and must finish first")]
    FileBusy,
    /// Another writer changed the files during a save.
    #[error(
        "another writer changed the directory during the save, and {} is not the saved file: \
         save again, or check the files",
        Quoted(.file)
    )]
    Overtaken { file: String },
    /// An index file is malformed.
    #[error("the index is malformed: {problem}")]
    BadIndex { problem: IndexProblem },
    /// A delta, which `safetensors-delta` applies to `base`.
    #[error("this is a delta of {}; apply it to that checkpoint first", Quoted(.base))]
    IsDelta { base: String },
    /// Not the index of a delta.
    #[error("expected a delta, with a delta_encoding in its index, found a checkpoint")]
    NotADelta,
    /// Two files of the checkpoint have this tensor.
    #[error("another file has a tensor of the same name: {}", Escaped(.other))]
    InTwoFiles { other: String },
    /// The index names a shard without the tensor.
    #[error("the index places it in {}, which does not have it", Quoted(.shard))]
    NotInShard { shard: String },
    /// Not the size of a shard.
    #[error(
        "expected a number of bytes, or a number with KB, MB, GB or TB, such as 5GB; found {}",
        Quoted(.found)
    )]
    BadShardSize { found: String },
    /// Not a pattern for names of files.
    #[error(
        "expected a file name that contains {{suffix}} once and ends in .safetensors, found {}",
        Quoted(.found)
    )]
    BadFilePattern { found: String },

    // Loading into a model.
    /// The checkpoint does not match the tensors in memory.
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
    Experts {
        #[from]
        problem: ExpertProblem,
    },
    #[error("{problem}")]
    Optimizer {
        #[from]
        problem: OptimizerProblem,
    },

    // The caller.
    /// The progress callback stopped the work.
    #[error("cancelled")]
    Cancelled,
}

impl ErrorKind {
    pub(crate) fn element_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::DoesNotFit { index, .. } | Self::InvalidBool { index, .. } => Some(index),
            _ => None,
        }
    }
}
