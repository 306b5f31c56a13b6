//! [`ErrorKind`]: failures of this crate alone, inside the library's errors.

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

/// Converts to an error of reading bytes. Core adds the file and the tensor, so both are omitted.
pub(crate) fn to_io(error: Error) -> io::Error {
    match error.into_kind() {
        CoreKind::Io(error) => error,
        CoreKind::Other(kind) => io::Error::new(io::ErrorKind::InvalidData, kind),
        kind => io::Error::new(io::ErrorKind::InvalidData, Error::from(kind)),
    }
}

/// Failures of a file of another format, with the expected and the found values.
///
/// An [`Error`] has it as [`ErrorKind::Other`](CoreKind::Other), and names the file, and the tensor
/// or the member of an archive. Failures that other crates share have a kind of the core.
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
    /// The file does not start as a `.npy` file does; `found` is its start.
    #[error("not a .npy file")]
    NotNpy { found: Vec<u8> },
    /// NumPy writes no header of this version.
    #[error(".npy version {major}.{minor} is unknown; expected 1.0, 2.0 or 3.0")]
    UnknownVersion { major: u8, minor: u8 },
    /// The header is longer than [`Limits`](crate::Limits) allows.
    #[error("a .npy header of {found} bytes is over the limit of {limit}")]
    HeaderTooLong { limit: u64, found: u64 },
    /// The file ends inside the header.
    #[error("the .npy header should have {expected} bytes, but only {found} are there")]
    HeaderCut { expected: u64, found: u64 },
    /// The header has version 3.0 and is not UTF-8.
    #[error("the .npy header is not UTF-8 from its byte {offset}")]
    HeaderNotUtf8 { offset: usize },
    /// The header is not written as Python writes a literal.
    #[error("the .npy header, at its byte {offset}: expected {expected}, found {found}")]
    BadLiteral { offset: usize, expected: &'static str, found: String },
    /// The header is a literal of another type than a dictionary.
    #[error("the .npy header should be a dictionary, found {found}")]
    NotADictionary { found: &'static str },
    /// The header lacks a key.
    #[error("the .npy header has no {key}")]
    MissingKey { key: &'static str },
    /// The header has a key twice. NumPy takes the last value; we take none.
    #[error("the .npy header has {key} twice")]
    DuplicateKey { key: &'static str },
    /// The header has a key that the format does not define.
    #[error("the .npy header has descr, fortran_order and shape, but also {}", Quoted(.found))]
    UnknownKey { found: String },
    /// A value of the header has the wrong type.
    #[error("{key} of the .npy header should be {expected}, found {found}")]
    WrongType { key: &'static str, expected: &'static str, found: String },
    /// The array is a table of named fields, or of arrays.
    #[error("the .npy array has fields; only plain arrays can be read")]
    Fields,
    /// The elements have a type that safetensors has no dtype for. `hint` is empty, or a way out.
    #[error("the NumPy type {} has no dtype in the format{hint}", Quoted(.descr))]
    UnsupportedType { descr: String, hint: &'static str },
    /// The bytes of the array do not match its header.
    #[error("the array has {found} bytes, but its shape asks for {expected}")]
    DataLength { expected: u64, found: u64 },

    // Archives.
    /// The archive is damaged, or uses a feature that cannot be read, such as encryption.
    #[error("{problem}")]
    BadArchive { problem: String },
    /// More members than [`Limits`](crate::Limits) allows.
    #[error("the archive has {found} members, over the limit of {limit}")]
    TooManyMembers { limit: usize, found: usize },
    /// Two members have the same name. Readers differ in which of them they read.
    #[error("two members of the archive have the same name; write it anew with one of them")]
    DuplicateMember,
    /// Two members are arrays with the same name, such as `a` and `a.npy`.
    #[error("two members of the archive have this name, with and without .npy")]
    DuplicateArray,
    /// No array has the name. [`Error::similar`] has the names that may have been meant.
    #[error("the archive has no such array")]
    NoSuchArray,
    /// Members share bytes of the archive, or reach past its end. Such an archive can unpack to
    /// any multiple of its size.
    #[error("members of the archive overlap, or reach past its end")]
    Overlap,
    /// A member claims a size that its compressed bytes cannot have.
    #[error("the member claims {found} bytes, but its {stored} in the archive hold {most} at most")]
    ImpossibleSize { stored: u64, most: u64, found: u64 },

    // Any format.
    /// The file has no format that this crate reads.
    #[error(
        "not a file of NumPy, PyTorch, GGUF or burn{}",
        .found.map_or_else(String::new, |format| format!(": {format}"))
    )]
    UnknownFormat { found: Option<OtherFormat> },
    /// The file has a format that needs a feature which is not enabled.
    #[error("a file of {format}, which this program was built without")]
    NotEnabled { format: crate::Format },
    /// The file is a ZIP archive and something else, too: `other` is before the archive, or
    /// otherwise behind it.
    #[error(
        "it is {other}, and also a ZIP archive, from byte {} to {} of {file_len}; which of them is \
         read depends on the program", .archive.start, .archive.end
    )]
    TwoFormats { other: String, archive: std::ops::Range<u64>, file_len: u64 },
    /// The file has another format, and a program that reads pickles takes it for one, too, and
    /// imports a name in it.
    #[error(
        "it is {other}, and also a pickle that imports {import}; which of them is read depends on \
         the program"
    )]
    AlsoPickle { other: String, import: String },
    /// The file has another format than its place asks for.
    #[error("expected a file of {expected}, found one of {found}")]
    OtherFormat { expected: &'static str, found: String },
    /// The tensors have far more bytes than a file of this length can hold.
    #[error(
        "the tensors up to this one have {found} bytes, but those of a file of {file_len} bytes \
         may have {limit} at most"
    )]
    TooExpanded { file_len: u64, limit: u64, found: u64 },
    /// The list of an archive's members, or a pickle, header or index, is longer than
    /// [`Limits::directory_bytes`](crate::Limits::directory_bytes).
    #[error("its list of tensors or members is over the limit of {limit} bytes")]
    DirectoryTooLong { limit: u64 },
    /// Values are nested too deep.
    #[error("the values are nested deeper than the limit of {limit}")]
    NestedTooDeep { limit: usize },
    /// Reading the files, or a manifest of them, takes more memory, or more steps, than is in
    /// proportion to their length.
    #[error(
        "names, lists or tensors are repeated too often: over {limit} {what} for {file_len} bytes; \
         save the tensors again"
    )]
    OutOfProportion { what: &'static str, limit: u64, file_len: u64 },
    /// The elements have a type that safetensors has no dtype for.
    #[error("the elements are {name}, which has no dtype in the format")]
    NoDtype { name: String },
    /// The numbers are big-endian.
    #[error("the numbers are big-endian, which is not read; save the file anew")]
    BigEndian,

    // PyTorch.
    /// The archive has no pickle of the name that PyTorch gives it.
    #[error("the archive has no data.pkl")]
    NoPickle,
    /// A pickle that does not begin as a file of PyTorch does.
    #[error("a pickle, but not one that PyTorch's save has written")]
    NoMagic,
    /// A pickle that breaks a rule; `offset` is the byte after the opcode.
    #[error("the pickle, up to its byte {offset}: {}", Short(.problem))]
    BadPickle { offset: u64, problem: String },
    /// A tensor or an array is a part of an object of an unknown class. No code of a file is run,
    /// so the meaning of the tensor is not known.
    #[error(
        "a tensor inside {}, which is not read; save its state_dict() instead", Quoted(.class)
    )]
    UnknownObject { class: String },
    /// The archive lacks the code of a class of TorchScript, which lists its parameters and
    /// buffers.
    #[error("the archive has no code of the class {}, which lists its parameters", Quoted(.class))]
    NoCode { class: String },
    /// The code of TorchScript lists parameters or buffers in a way that is not known.
    #[error("the code in {}: {}", Quoted(.file), Short(.problem))]
    BadCode { file: String, problem: String },
    /// The archive is one of `torch.export`, which has no pickle of the parameters.
    #[error(
        "an archive of torch.export, which is not read; save the module's state_dict() instead"
    )]
    Exported,
    /// A dictionary has this key twice. Python would keep the last value.
    #[error("its dictionary has this key twice")]
    DuplicateDictKey,
    /// The file names another order of bytes than `little` or `big`.
    #[error("the byte order of the archive should be little, found {}", Quoted(.found))]
    UnknownByteOrder { found: String },
    /// The storage of a tensor is not in the file.
    #[error("its storage {} is not in the file", Quoted(.storage))]
    NoStorage { storage: String },
    /// The file ends inside the storage of a tensor.
    #[error("the file ends inside the storage {}, after {file_len} bytes", Quoted(.storage))]
    StorageCut { storage: String, file_len: u64 },
    /// A tensor reaches past the end of its storage. All numbers are counted in elements.
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
    /// A record of burn breaks a rule; `offset` is the byte after the problem.
    #[error("the record of burn, up to its byte {offset}: {}", Short(.problem))]
    BadRecord { offset: u64, problem: String },

    /// burn cannot read the tensor in a burnpack file, or the file.
    #[error("{problem}, so a burnpack file of burn cannot have it")]
    NotForBurn { problem: String },

    // Directories of trainers.
    /// The file holds parts of tensors, which only its directory completes.
    #[error(
        "a part of a checkpoint that is divided among files; open the directory, which holds them \
         all"
    )]
    PartOfDirectory,
    /// A file of a directory is not there. The save may not have been finished.
    #[error("the checkpoint is not complete: {} is missing", Quoted(.file))]
    MissingFile { file: String },
    /// The files of a directory break a rule, or do not belong together.
    #[error("{}", Short(.problem))]
    BadDirectory { problem: String },
    /// Content that is not read, although it may be valid.
    #[error("not read: {}", Short(.problem))]
    NotRead { problem: String },

    // GGUF.
    /// The header breaks a rule; `offset` is the byte after the problem.
    #[error("the GGUF header, up to its byte {offset}: {}", Short(.problem))]
    BadGguf { offset: u64, problem: String },
    /// A tensor reaches past the end of the file.
    #[error("its data ends at byte {expected}, but the file has {found}")]
    PastEnd { expected: u64, found: u64 },
    /// The file is a part of a split GGUF file, and not a complete model.
    #[error(
        "it is part {} of {count} of a split GGUF file, and no whole model without the others",
        u32::from(*number) + 1
    )]
    SplitGguf { number: u16, count: u16 },
    /// The parts of a split GGUF file do not belong together.
    #[error("the split GGUF file: {}", Short(.problem))]
    BadSplit { problem: String },
    /// Two tensors share bytes of the file.
    #[error("its data overlaps that of {}", Quoted(.other))]
    TensorsOverlap { other: String },
    /// The tensor is quantised, and [`Options::dequantize`](crate::Options::dequantize) was not
    /// asked for.
    #[error("the tensor is quantised as {kind}; its values are read only if it is dequantised")]
    Quantised { kind: &'static str },
    /// The tensor is quantised in a way that cannot be undone here, or its type is not known.
    #[error("the tensor is quantised as {kind}, which cannot be dequantised here")]
    NoDequantizer { kind: String },
    /// Another tensor of the same module, such as the scale of the quantised tensor, is wrong, or
    /// its meaning is not known.
    #[error("{}, so the numbers of this tensor are not known", Short(.problem))]
    BadCompanion { problem: String },

    // Writing GGUF.
    /// A GGUF file cannot have the tensor, or the key, or it cannot be written here.
    #[error("{problem}, so a GGUF file cannot have it")]
    NotForGguf { problem: String },
    /// A quantised type cannot hold a number: it is not finite, or its scale exceeds F16.
    #[error("element {index} is {value}, which does not fit {kind}")]
    NotQuantisable { index: u64, value: String, kind: &'static str },
    /// The settings next to the weights have something that GGUF cannot have, or that is not known
    /// here.
    #[error("{}", Short(.problem))]
    BadModel { problem: String },
    /// The tokenizer next to the weights cannot be in a GGUF file, or is not known here.
    #[error("{}", Short(.problem))]
    BadTokenizer { problem: String },
    /// Models of the architecture have no such tensor.
    #[error("it is no tensor of the architecture {architecture} that is known here")]
    NoGgufName { architecture: &'static str },
    /// The shape does not match the settings of the model.
    #[error("the model's settings ask for shape {expected:?}, found {found:?}")]
    WrongShape { expected: Vec<u64>, found: Vec<usize> },
    /// The model lacks tensors. At most a few of them are named.
    #[error("the model lacks {}", NameList(.names))]
    MissingTensors { names: Vec<String> },

    // Writing.
    /// NumPy has no type for a dtype.
    #[error("NumPy has no type for {dtype}")]
    NoNumpyType { dtype: Dtype },
    /// Zarr does not allow the name of a tensor.
    #[error("Zarr does not allow the name: {problem}")]
    NotForZarr { problem: &'static str },
    /// An earlier tensor was not written completely, so the archive cannot be finished.
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

/// A text that may quote names of any length, shortened where it is too long for a message.
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
