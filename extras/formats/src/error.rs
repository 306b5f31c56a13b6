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

/// A failure in a file of another format, with the expected and the found value.
///
/// An [`Error`] has it as [`ErrorKind::Other`](CoreKind::Other), and names the file, and the tensor
/// or member. Shared failures are kinds of the core.
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
    /// The file does not start like a `.npy` file.
    #[error("not a .npy file")]
    NotNpy { found: Vec<u8> },
    /// NumPy writes no header of this version.
    #[error(".npy version {major}.{minor} is unknown; expected 1.0, 2.0 or 3.0")]
    UnknownVersion { major: u8, minor: u8 },
    /// The header is over the limit of [`Limits`](crate::Limits).
    #[error("a .npy header of {found} bytes is over the limit of {limit}")]
    HeaderTooLong { limit: u64, found: u64 },
    /// The file ends inside the header.
    #[error("the .npy header should have {expected} bytes, but only {found} are there")]
    HeaderCut { expected: u64, found: u64 },
    /// The header of version 3.0 is not UTF-8.
    #[error("the .npy header is not UTF-8 from its byte {offset}")]
    HeaderNotUtf8 { offset: usize },
    /// The header is not a Python literal.
    #[error("the .npy header, at its byte {offset}: expected {expected}, found {found}")]
    BadLiteral { offset: usize, expected: &'static str, found: String },
    /// The literal is not a dictionary.
    #[error("the .npy header should be a dictionary, found {found}")]
    NotADictionary { found: &'static str },
    /// The header lacks a key.
    #[error("the .npy header has no {key}")]
    MissingKey { key: &'static str },
    /// The header has a key twice.
    #[error("the .npy header has {key} twice")]
    DuplicateKey { key: &'static str },
    /// The format does not define this key.
    #[error("the .npy header has descr, fortran_order and shape, but also {}", Quoted(.found))]
    UnknownKey { found: String },
    /// A value in the header has the wrong type.
    #[error("{key} of the .npy header should be {expected}, found {found}")]
    WrongType { key: &'static str, expected: &'static str, found: String },
    /// The array has named fields, or arrays as elements.
    #[error("the .npy array has fields; only plain arrays can be read")]
    Fields,
    /// No dtype has these elements. `hint` is empty, or a way out.
    #[error("the NumPy type {} has no dtype in the format{hint}", Quoted(.descr))]
    UnsupportedType { descr: String, hint: &'static str },
    /// The array's bytes do not match its header.
    #[error("the array has {found} bytes, but its shape asks for {expected}")]
    DataLength { expected: u64, found: u64 },

    // Archives.
    /// The archive is damaged, or cannot be read, such as an encrypted one.
    #[error("{problem}")]
    BadArchive { problem: String },
    /// The archive has more members than [`Limits`](crate::Limits) allows.
    #[error("the archive has {found} members, over the limit of {limit}")]
    TooManyMembers { limit: usize, found: usize },
    /// Two members have the same name.
    #[error("two members of the archive have the same name; write it anew with one of them")]
    DuplicateMember,
    /// Two members are arrays with the same name, such as `a` and `a.npy`.
    #[error("two members of the archive have this name, with and without .npy")]
    DuplicateArray,
    /// No array has the name. [`Error::similar`] returns similar names.
    #[error("the archive has no such array")]
    NoSuchArray,
    /// Members share bytes, or reach past the end. Such an archive can unpack to any size.
    #[error("members of the archive overlap, or reach past its end")]
    Overlap,
    /// A member's size is impossible for its compressed bytes.
    #[error("the member claims {found} bytes, but its {stored} in the archive hold {most} at most")]
    ImpossibleSize { stored: u64, most: u64, found: u64 },

    // Any format.
    /// This crate does not read the format.
    #[error(
        "not a file of NumPy, PyTorch, GGUF or burn{}",
        .found.map_or_else(String::new, |format| format!(": {format}"))
    )]
    UnknownFormat { found: Option<OtherFormat> },
    /// The format needs a feature.
    #[error("a file of {format}, which this program was built without")]
    NotEnabled { format: crate::Format },
    /// The file is a ZIP archive and another format: `other` is before or after it.
    #[error(
        "it is {other}, and also a ZIP archive, from byte {} to {} of {file_len}; which of them is \
         read depends on the program", .archive.start, .archive.end
    )]
    TwoFormats { other: String, archive: std::ops::Range<u64>, file_len: u64 },
    /// The file is also a pickle that imports a name.
    #[error(
        "it is {other}, and also a pickle that imports {import}; which of them is read depends on \
         the program"
    )]
    AlsoPickle { other: String, import: String },
    /// The file has a different format than its place needs.
    #[error("expected a file of {expected}, found one of {found}")]
    OtherFormat { expected: &'static str, found: String },
    /// The tensors are far larger than a file of this length can hold.
    #[error(
        "the tensors up to this one have {found} bytes, but those of a file of {file_len} bytes \
         may have {limit} at most"
    )]
    TooExpanded { file_len: u64, limit: u64, found: u64 },
    /// A list of members, pickle, header or index is over
    /// [`Limits::directory_bytes`](crate::Limits::directory_bytes).
    #[error("its list of tensors or members is over the limit of {limit} bytes")]
    DirectoryTooLong { limit: u64 },
    /// Values are nested too deeply.
    #[error("the values are nested deeper than the limit of {limit}")]
    NestedTooDeep { limit: usize },
    /// Reading takes more memory or steps than is in proportion to the files.
    #[error(
        "names, lists or tensors are repeated too often: over {limit} {what} for {file_len} bytes; \
         save the tensors again"
    )]
    OutOfProportion { what: &'static str, limit: u64, file_len: u64 },
    /// No dtype has these elements.
    #[error("the elements are {name}, which has no dtype in the format")]
    NoDtype { name: String },
    /// The numbers are big-endian.
    #[error("the numbers are big-endian, which is not read; save the file anew")]
    BigEndian,

    // PyTorch.
    /// The archive lacks PyTorch's pickle.
    #[error("the archive has no data.pkl")]
    NoPickle,
    /// The pickle does not begin like a file of PyTorch.
    #[error("a pickle, but not one that PyTorch's save has written")]
    NoMagic,
    /// The pickle breaks a rule; `offset` is the byte after the opcode.
    #[error("the pickle, up to its byte {offset}: {}", Short(.problem))]
    BadPickle { offset: u64, problem: String },
    /// The tensor or array is inside an object of an unknown class, so its meaning is not known.
    #[error(
        "a tensor inside {}, which is not read; save its state_dict() instead", Quoted(.class)
    )]
    UnknownObject { class: String },
    /// The archive lacks the code of a TorchScript class, with its parameters and buffers.
    #[error("the archive has no code of the class {}, which lists its parameters", Quoted(.class))]
    NoCode { class: String },
    /// The TorchScript code lists parameters or buffers in an unknown way.
    #[error("the code in {}: {}", Quoted(.file), Short(.problem))]
    BadCode { file: String, problem: String },
    /// The archive is from `torch.export`.
    #[error(
        "an archive of torch.export, which is not read; save the module's state_dict() instead"
    )]
    Exported,
    /// A dictionary has this key twice.
    #[error("its dictionary has this key twice")]
    DuplicateDictKey,
    /// The byte order is neither `little` nor `big`.
    #[error("the byte order of the archive should be little, found {}", Quoted(.found))]
    UnknownByteOrder { found: String },
    /// The storage of a tensor is not in the file.
    #[error("its storage {} is not in the file", Quoted(.storage))]
    NoStorage { storage: String },
    /// The file ends inside a storage.
    #[error("the file ends inside the storage {}, after {file_len} bytes", Quoted(.storage))]
    StorageCut { storage: String, file_len: u64 },
    /// A tensor reaches past its storage. All numbers count elements.
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
    /// An index breaks a rule.
    #[error("the index: {}", Short(.problem))]
    BadIndex { problem: String },

    // burn.
    /// A burn record breaks a rule; `offset` is the byte after the problem.
    #[error("the record of burn, up to its byte {offset}: {}", Short(.problem))]
    BadRecord { offset: u64, problem: String },

    /// burn cannot read the tensor or the file as burnpack.
    #[error("{problem}, so a burnpack file of burn cannot have it")]
    NotForBurn { problem: String },

    // Directories of trainers.
    /// The file has parts of tensors. Open its directory.
    #[error(
        "a part of a checkpoint that is divided among files; open the directory, which holds them \
         all"
    )]
    PartOfDirectory,
    /// A file of a directory is missing. The save may be incomplete.
    #[error("the checkpoint is not complete: {} is missing", Quoted(.file))]
    MissingFile { file: String },
    /// The files of a directory break a rule, or do not belong together.
    #[error("{}", Short(.problem))]
    BadDirectory { problem: String },
    /// The content is not supported.
    #[error("not read: {}", Short(.problem))]
    NotRead { problem: String },

    // GGUF.
    /// The header breaks a rule; `offset` is the byte after the problem.
    #[error("the GGUF header, up to its byte {offset}: {}", Short(.problem))]
    BadGguf { offset: u64, problem: String },
    /// A tensor reaches past the end of the file.
    #[error("its data ends at byte {expected}, but the file has {found}")]
    PastEnd { expected: u64, found: u64 },
    /// The file is one part of a split GGUF file.
    #[error(
        "it is part {} of {count} of a split GGUF file, and no whole model without the others",
        u32::from(*number) + 1
    )]
    SplitGguf { number: u16, count: u16 },
    /// Parts of a split GGUF file do not belong together.
    #[error("the split GGUF file: {}", Short(.problem))]
    BadSplit { problem: String },
    /// Two tensors share bytes of the file.
    #[error("its data overlaps that of {}", Quoted(.other))]
    TensorsOverlap { other: String },
    /// The tensor is quantised, and [`Options::dequantize`](crate::Options::dequantize) is off.
    #[error("the tensor is quantised as {kind}; its values are read only if it is dequantised")]
    Quantised { kind: &'static str },
    /// The tensor has a quantised type that is not supported.
    #[error("the tensor is quantised as {kind}, which cannot be dequantised here")]
    NoDequantizer { kind: String },
    /// Another tensor of the module, such as a scale, is wrong or unknown.
    #[error("{}, so the numbers of this tensor are not known", Short(.problem))]
    BadCompanion { problem: String },

    // Writing GGUF.
    /// GGUF cannot have the tensor or key, or this crate cannot write it.
    #[error("{problem}, so a GGUF file cannot have it")]
    NotForGguf { problem: String },
    /// A number does not fit the quantised type: it is not finite, or its scale exceeds F16.
    #[error("element {index} is {value}, which does not fit {kind}")]
    NotQuantisable { index: u64, value: String, kind: &'static str },
    /// The model's settings are unknown, or GGUF cannot have them.
    #[error("{}", Short(.problem))]
    BadModel { problem: String },
    /// The tokenizer is unknown, or GGUF cannot have it.
    #[error("{}", Short(.problem))]
    BadTokenizer { problem: String },
    /// The architecture has no such tensor.
    #[error("it is no tensor of the architecture {architecture} that is known here")]
    NoGgufName { architecture: &'static str },
    /// The shape does not match the model's settings.
    #[error("the model's settings ask for shape {expected:?}, found {found:?}")]
    WrongShape { expected: Vec<u64>, found: Vec<usize> },
    /// The model lacks tensors. At most a few are named.
    #[error("the model lacks {}", NameList(.names))]
    MissingTensors { names: Vec<String> },

    // Writing.
    /// NumPy has no type for the dtype.
    #[error("NumPy has no type for {dtype}")]
    NoNumpyType { dtype: Dtype },
    /// Zarr does not allow the tensor's name.
    #[error("Zarr does not allow the name: {problem}")]
    NotForZarr { problem: &'static str },
    /// An earlier tensor is incomplete, so the archive cannot be finished.
    #[error("an earlier tensor was not written whole")]
    WriterFailed,

    // Everything else.
    /// A large compressed array in Fortran order did not fit into a temporary file.
    #[error(
        "cannot be unpacked to a temporary file in {}; TMPDIR can name another directory: {source}",
        .directory.display()
    )]
    Temporary { directory: PathBuf, source: io::Error },
}

/// Shortens names for a message.
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
