//! [`ErrorKind`]: failures of this crate, as kinds of the library's errors.

use std::path::PathBuf;
use std::{fmt, io};

pub(crate) use safetensors_core::framework::Quoted;
use safetensors_core::framework::{NameList, OtherFormat};
use safetensors_core::{Dtype, ErrorKind as CoreKind};
pub use safetensors_core::{Error, Result};

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

/// Omits file and tensor, which core adds.
pub(crate) fn to_io(error: Error) -> io::Error {
    match error.into_kind() {
        CoreKind::Io(error) => error,
        CoreKind::Other(kind) => io::Error::new(io::ErrorKind::InvalidData, kind),
        kind => io::Error::new(io::ErrorKind::InvalidData, Error::from(kind)),
    }
}

/// A failure in a file of another format, as [`ErrorKind::Other`](CoreKind::Other) of an [`Error`]
/// that names file, and tensor or member.
///
/// Sizes are in bytes. Messages shorten text from outside, fields do not.
///
/// ```
/// use safetensors_formats::{ErrorKind, Limits, npy};
///
/// let error = npy::Array::from_source(b"GIF89a", "a.npy", &Limits::default()).unwrap_err();
/// assert!(matches!(error.other(), Some(ErrorKind::NotNpy { .. })));
/// assert_eq!(error.to_string(), "a.npy: not a .npy file");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // The header of a `.npy` file.
    /// A file that does not start like `.npy`.
    #[error("not a .npy file")]
    NotNpy { found: Vec<u8> },
    /// A version that NumPy does not write.
    #[error(".npy version {major}.{minor} is unknown; expected 1.0, 2.0 or 3.0")]
    UnknownVersion { major: u8, minor: u8 },
    /// A header over the limit of [`Limits`](crate::Limits).
    #[error("a .npy header of {found} bytes is over the limit of {limit}")]
    HeaderTooLong { limit: u64, found: u64 },
    /// A header that is cut off.
    #[error("the .npy header should have {expected} bytes, but only {found} are there")]
    HeaderCut { expected: u64, found: u64 },
    /// A header of version 3.0 that is not UTF-8.
    #[error("the .npy header is not UTF-8 from its byte {offset}")]
    HeaderNotUtf8 { offset: usize },
    /// A header that is not a Python literal.
    #[error("the .npy header, at its byte {offset}: expected {expected}, found {found}")]
    BadLiteral { offset: usize, expected: &'static str, found: String },
    /// A literal of another type.
    #[error("the .npy header should be a dictionary, found {found}")]
    NotADictionary { found: &'static str },
    /// A header without a key.
    #[error("the .npy header has no {key}")]
    MissingKey { key: &'static str },
    /// A header with a key twice.
    #[error("the .npy header has {key} twice")]
    DuplicateKey { key: &'static str },
    /// A key that the format does not define.
    #[error(
        "the .npy header has the unknown key {}; expected descr, fortran_order and shape",
        Quoted(.found)
    )]
    UnknownKey { found: String },
    /// A value of the wrong type.
    #[error("{key} of the .npy header should be {expected}, found {found}")]
    WrongType { key: &'static str, expected: &'static str, found: String },
    /// An array with named fields, or with arrays as elements.
    #[error("the .npy array has fields; only plain arrays can be read")]
    Fields,
    /// Elements without a dtype. `hint` is empty, or a way out.
    #[error("the NumPy type {} has no dtype in the format{hint}", Quoted(.descr))]
    UnsupportedType { descr: String, hint: &'static str },
    /// Bytes that do not match the header.
    #[error("the array has {found} bytes, but its shape asks for {expected}")]
    DataLength { expected: u64, found: u64 },

    // Archives.
    /// A damaged or encrypted archive.
    #[error("{problem}")]
    BadArchive { problem: String },
    /// More members than [`Limits`](crate::Limits) allows.
    #[error("the archive has {found} members, over the limit of {limit}")]
    TooManyMembers { limit: usize, found: usize },
    /// Two members with one name.
    #[error("two members of the archive have the same name; write it again with one of them")]
    DuplicateMember,
    /// Two arrays with one name, such as `a` and `a.npy`.
    #[error("two members of the archive have this name, with and without .npy")]
    DuplicateArray,
    /// An unknown array. [`Error::similar`] returns similar names.
    #[error("the archive has no such array")]
    NoSuchArray,
    /// Members that share bytes, or reach past the end. They could unpack to any size.
    #[error("members of the archive overlap, or reach past its end")]
    Overlap,
    /// A size that is impossible for the compressed bytes.
    #[error("the member claims {found} bytes, but its {stored} stored bytes hold at most {most}")]
    ImpossibleSize { stored: u64, most: u64, found: u64 },

    // Any format.
    /// A format that this crate does not read.
    #[error(
        "not a file of NumPy, PyTorch, GGUF or burn{}",
        .found.map_or_else(String::new, |format| format!(": {format}"))
    )]
    UnknownFormat { found: Option<OtherFormat> },
    /// A format that needs a feature.
    #[error("a file of {format}, which this program was built without")]
    NotEnabled { format: crate::Format },
    /// A ZIP archive that is another format, too: `other` is before or after it.
    #[error(
        "it is {other} and a ZIP archive (bytes {} to {} of {file_len}): programs read one or \
         the other",
        .archive.start, .archive.end
    )]
    TwoFormats { other: String, archive: std::ops::Range<u64>, file_len: u64 },
    /// A file that is also a pickle with imports.
    #[error("it is {other} and a pickle that imports {import}: programs read one or the other")]
    AlsoPickle { other: String, import: String },
    /// A file of another format than its place needs.
    #[error("expected a file of {expected}, found one of {found}")]
    OtherFormat { expected: &'static str, found: String },
    /// Tensors far larger than the file.
    #[error(
        "the tensors up to this one have {found} bytes, but those of a file of {file_len} bytes \
         may have {limit} at most"
    )]
    TooExpanded { file_len: u64, limit: u64, found: u64 },
    /// A list of members, pickle, header or index over
    /// [`Limits::directory_bytes`](crate::Limits::directory_bytes).
    #[error("its list of tensors or members is over the limit of {limit} bytes")]
    DirectoryTooLong { limit: u64 },
    /// Values nested too deeply.
    #[error("the values are nested deeper than the limit of {limit}")]
    NestedTooDeep { limit: usize },
    /// Memory or steps out of proportion to the files.
    #[error(
        "names, lists or tensors repeat too often: over {limit} {what} for {file_len} bytes; \
         save the tensors again"
    )]
    OutOfProportion { what: &'static str, limit: u64, file_len: u64 },
    /// Elements without a dtype.
    #[error("the elements are {name}, which has no dtype in the format")]
    NoDtype { name: String },
    /// Big-endian numbers.
    #[error("the numbers are big-endian, which is not read; save the file again")]
    BigEndian,

    // PyTorch.
    /// An archive without PyTorch's pickle.
    #[error("the archive has no data.pkl")]
    NoPickle,
    /// A pickle that does not begin like PyTorch's.
    #[error("a pickle, but not one that PyTorch's save has written")]
    NoMagic,
    /// A malformed pickle; `offset` is the byte after the opcode.
    #[error("the pickle, up to its byte {offset}: {}", Short(.problem))]
    BadPickle { offset: u64, problem: String },
    /// A tensor or array with an unknown meaning, inside an object of another class.
    #[error(
        "a tensor inside {}, which is not read; save its state_dict() instead", Quoted(.class)
    )]
    UnknownObject { class: String },
    /// An archive without the code of a TorchScript class.
    #[error("the archive has no code of the class {}, which lists its parameters", Quoted(.class))]
    NoCode { class: String },
    /// TorchScript code that lists parameters or buffers in an unknown way.
    #[error("the code in {}: {}", Quoted(.file), Short(.problem))]
    BadCode { file: String, problem: String },
    /// An archive of `torch.export`.
    #[error(
        "an archive of torch.export, which is not read; save the module's state_dict() instead"
    )]
    Exported,
    /// A dictionary with a key twice.
    #[error("its dictionary has this key twice")]
    DuplicateDictKey,
    /// A byte order other than `little` and `big`.
    #[error("the byte order of the archive should be little, found {}", Quoted(.found))]
    UnknownByteOrder { found: String },
    /// A tensor without its storage.
    #[error("its storage {} is not in the file", Quoted(.storage))]
    NoStorage { storage: String },
    /// A file that ends inside a storage.
    #[error("the file ends inside the storage {}, after {file_len} bytes", Quoted(.storage))]
    StorageCut { storage: String, file_len: u64 },
    /// A tensor that reaches past its storage. All numbers count elements.
    #[error(
        "shape {} with strides {} from element {offset} on reaches past the {available} elements \
         of the storage {}",
        Short(&format!("{shape:?}")),
        Short(&format!("{strides:?}")),
        Quoted(.storage)
    )]
    OutsideStorage {
        storage: String,
        available: u64,
        offset: u64,
        shape: Vec<usize>,
        strides: Vec<u64>,
    },
    /// A malformed index.
    #[error("the index: {}", Short(.problem))]
    BadIndex { problem: String },

    // burn.
    /// A malformed burn record; `offset` is the byte after the problem.
    #[error("the record of burn, up to its byte {offset}: {}", Short(.problem))]
    BadRecord { offset: u64, problem: String },

    /// A tensor or file that burn cannot read as burnpack.
    #[error("{problem}, so a burnpack file of burn cannot have it")]
    NotForBurn { problem: String },

    // Directories of trainers.
    /// A file with parts of tensors: open its directory.
    #[error(
        "a part of a checkpoint that is divided among files; open the directory, which holds them \
         all"
    )]
    PartOfDirectory,
    /// A directory without one of its files. The save may be incomplete.
    #[error("the checkpoint is not complete: {} is missing", Quoted(.file))]
    MissingFile { file: String },
    /// Files of a directory that are malformed, or do not belong together.
    #[error("{}", Short(.problem))]
    BadDirectory { problem: String },
    /// Content that is not supported.
    #[error("not read: {}", Short(.problem))]
    NotRead { problem: String },

    // GGUF.
    /// A malformed header; `offset` is the byte after the problem.
    #[error("the GGUF header, up to its byte {offset}: {}", Short(.problem))]
    BadGguf { offset: u64, problem: String },
    /// A tensor past the end of the file.
    #[error("its data ends at byte {expected}, but the file has {found}")]
    PastEnd { expected: u64, found: u64 },
    /// A part of a split GGUF file.
    #[error(
        "it is part {} of {count} of a split GGUF file, and no whole model without the others",
        u32::from(*number) + 1
    )]
    SplitGguf { number: u16, count: u16 },
    /// Parts that do not belong together.
    #[error("the split GGUF file: {}", Short(.problem))]
    BadSplit { problem: String },
    /// Tensors that share bytes.
    #[error("its data overlaps that of {}", Quoted(.other))]
    TensorsOverlap { other: String },
    /// A quantised tensor without [`Options::dequantize`](crate::Options::dequantize).
    #[error("the tensor is quantised as {kind}; its values are read only if it is dequantised")]
    Quantised { kind: &'static str },
    /// A quantised type that is not supported.
    #[error("the tensor is quantised as {kind}, which cannot be dequantised here")]
    NoDequantizer { kind: String },
    /// A tensor of the same module, such as a scale, that is wrong or unknown.
    #[error("{}, so the numbers of this tensor are not known", Short(.problem))]
    BadCompanion { problem: String },

    // Writing GGUF.
    /// A tensor or key that GGUF cannot have, or that is not supported.
    #[error("{problem}, so a GGUF file cannot have it")]
    NotForGguf { problem: String },
    /// A number that is not finite, or with a scale above F16.
    #[error("element {index} is {value}, which does not fit {kind}")]
    NotQuantisable { index: u64, value: String, kind: &'static str },
    /// Settings of a model that are unknown, or that GGUF cannot have.
    #[error("{}", Short(.problem))]
    BadModel { problem: String },
    /// A tokenizer that is unknown, or that GGUF cannot have.
    #[error("{}", Short(.problem))]
    BadTokenizer { problem: String },
    /// A tensor that the architecture lacks.
    #[error("it is no tensor of the architecture {architecture} that is known here")]
    NoGgufName { architecture: &'static str },
    /// A shape that does not match the model's settings.
    #[error("the model's settings ask for shape {expected:?}, found {found:?}")]
    WrongShape { expected: Vec<u64>, found: Vec<usize> },
    /// A model without some tensors. At most a few are named.
    #[error("the model lacks {}", NameList(.names))]
    MissingTensors { names: Vec<String> },

    // Writing.
    /// A dtype without a NumPy type.
    #[error("NumPy has no type for {dtype}")]
    NoNumpyType { dtype: Dtype },
    /// A name that Zarr does not allow.
    #[error("Zarr does not allow the name: {problem}")]
    NotForZarr { problem: &'static str },
    /// An archive with an incomplete tensor, which cannot be finished.
    #[error("an earlier tensor was not written whole")]
    WriterFailed,

    // Everything else.
    /// A large compressed array in Fortran order that does not fit into a temporary file.
    #[error(
        "cannot be unpacked to a temporary file in {}; TMPDIR can name another directory: {source}",
        .directory.display()
    )]
    Temporary { directory: PathBuf, source: io::Error },
}

struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 300;
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}... ({} bytes)", &self.0[..end], self.0.len()),
            None => f.write_str(self.0),
        }
    }
}
