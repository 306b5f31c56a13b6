//! The one error type: what went wrong, in which file, for which tensor, what was expected and what was found.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::Dtype;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What went wrong, and where.
///
/// [`kind`](Error::kind) says what, with the numbers; [`file`](Error::file) and [`tensor`](Error::tensor) say where, as
/// far as it is known. The message has all of it. Names come from files and may be hostile, so the message shows them
/// quoted, with control and bidirectional characters escaped.
///
/// ```
/// use safetensors_core::{ErrorKind, SafeTensors};
///
/// let error = SafeTensors::parse(b"\x02\0\0\0").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::TooShort { found: 4 }));
/// assert_eq!(error.to_string(), "expected at least 8 bytes for the header length, found 4");
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    file: Option<String>,
    tensor: Option<String>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The path of the file that the error is about, if it is about a file.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// The name of the tensor that the error is about, if it is about one. Unescaped: quote it before printing.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// Says which tensor the error is about, unless it says so already.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.into());
        self
    }

    /// Says which file the error is about, unless it says so already.
    #[must_use]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        self.0.file.get_or_insert_with(|| alloc::format!("{file}"));
        self
    }

    /// Says which file the error is about, unless it says so already.
    #[cfg(feature = "std")]
    pub(crate) fn in_path(self, path: &std::path::Path) -> Self {
        self.in_file(path.display())
    }

    /// An input or output error of `path`.
    #[cfg(feature = "std")]
    pub(crate) fn io(error: std::io::Error, path: &std::path::Path) -> Self {
        Self::from(ErrorKind::Io(error)).in_path(path)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Inner { kind, file: None, tensor: None }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", Escaped(file))?;
        }
        if let Some(tensor) = &self.0.tensor {
            write!(f, "tensor {tensor:?}: ")?;
        }
        self.0.kind.fmt(f)
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        core::error::Error::source(&self.0.kind)
    }
}

/// Text from outside, without quotes, with everything that is not printable escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\'' | '"' | '\\' => write!(f, "{c}"),
            _ => write!(f, "{}", c.escape_debug()),
        })
    }
}

/// What is wrong with the JSON text of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonProblem {
    /// The text starts with a byte-order mark.
    #[error("a byte-order mark")]
    ByteOrderMark,
    /// A comma before a closing bracket.
    #[error("a trailing comma")]
    TrailingComma,
    /// `//` or `/*`: JSON has no comments.
    #[error("a comment")]
    Comment,
    /// A control character, unescaped, inside a string.
    #[error("the control character U+{0:04X} inside a string, unescaped")]
    ControlCharacter(u8),
    /// A `\u` escape that is half of a surrogate pair without the other half.
    #[error("half of a surrogate pair")]
    LoneSurrogate,
    /// A backslash followed by something that JSON does not define.
    #[error("an unknown or incomplete escape")]
    BadEscape,
    /// The text ends inside a value.
    #[error("the end of the header, expected {expected}")]
    UnexpectedEnd {
        /// What should have come.
        expected: &'static str,
    },
    /// A byte that cannot stand there.
    #[error("{:?}, expected {expected}", char::from(*.found))]
    Unexpected {
        /// What should have come.
        expected: &'static str,
        /// The byte that came.
        found: u8,
    },
    /// Something other than white space after the header's closing brace.
    #[error("the byte {0:#04x} after the closing brace, where only white space may stand")]
    AfterEnd(u8),
}

/// Every way in which an operation can fail, with what was expected and what was found.
///
/// Sizes and offsets are in bytes. Data offsets count from the first byte after the header, as they do in the header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    // The frame of the file.
    /// The file is shorter than the 8 bytes of the header length.
    #[error("expected at least 8 bytes for the header length, found {found}")]
    TooShort {
        /// The length of the file.
        found: u64,
    },
    /// The header is longer than [`Limits`](crate::Limits) allows.
    #[error("the header has {found} bytes, over the limit of {limit}")]
    HeaderTooLarge {
        /// The most that is allowed.
        limit: u64,
        /// The header length that the file states.
        found: u64,
    },
    /// The header length points past the end of the file.
    #[error("the header should have {expected} bytes, but only {found} follow its length")]
    HeaderPastEnd {
        /// The header length that the file states.
        expected: u64,
        /// The bytes that are there.
        found: u64,
    },
    /// More tensors than [`Limits`](crate::Limits) allows.
    #[error("the header has more than {limit} tensors, the limit")]
    TooManyTensors {
        /// The most that is allowed.
        limit: usize,
    },

    // The header's text.
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 from its byte {offset}")]
    NotUtf8 {
        /// The first bad byte, counted from the start of the header.
        offset: usize,
    },
    /// The header is not a JSON object.
    #[error("the header is not a JSON object: it starts with {}", Found(*.found))]
    NotAnObject {
        /// The first byte that is not white space.
        found: Option<u8>,
    },
    /// The header is not JSON.
    #[error("the header is not JSON: at its byte {offset} stands {problem}")]
    Json {
        /// Where, counted from the start of the header.
        offset: usize,
        /// What.
        problem: JsonProblem,
    },
    /// A value nested deeper than any field of a header.
    #[error("a value is nested deeper than a header needs, at the header's byte {offset}")]
    TooDeep {
        /// Where, counted from the start of the header.
        offset: usize,
    },
    /// `__metadata__` stands twice.
    #[error("a second __metadata__")]
    DuplicateMetadata,
    /// `__metadata__` is not an object.
    #[error("__metadata__ should be an object, found {found}")]
    MetadataNotAnObject {
        /// What it is instead.
        found: &'static str,
    },
    /// A value in `__metadata__` is not a string.
    #[error("the value of {key:?} in __metadata__ should be a string, found {found}")]
    MetadataNotAString {
        /// The key.
        key: String,
        /// What it is instead.
        found: &'static str,
    },
    /// A key stands twice in `__metadata__`.
    #[error("the key {key:?} stands twice in __metadata__")]
    DuplicateMetadataKey {
        /// The key.
        key: String,
    },

    // One entry of the header.
    /// Two tensors have one name.
    #[error("the name stands twice")]
    DuplicateTensor,
    /// An entry is not an object.
    #[error("the entry should be an object, found {found}")]
    EntryNotAnObject {
        /// What it is instead.
        found: &'static str,
    },
    /// An entry lacks a field.
    #[error("the field {field:?} is missing")]
    MissingField {
        /// The field.
        field: &'static str,
    },
    /// An entry has a field twice.
    #[error("the field {field:?} stands twice")]
    DuplicateField {
        /// The field.
        field: &'static str,
    },
    /// An entry has a field that the format does not define.
    #[error("the field {found:?} is unknown; a tensor has dtype, shape and data_offsets")]
    UnknownField {
        /// The field.
        found: String,
    },
    /// A field holds the wrong kind of value.
    #[error("{field} should be {expected}, found {found}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// The kind of value that it should have.
        expected: &'static str,
        /// What it is instead.
        found: &'static str,
    },
    /// A number is not an unsigned 64-bit integer in plain digits.
    #[error("{field} should hold unsigned 64-bit integers in plain digits, found {found}")]
    BadNumber {
        /// The field.
        field: &'static str,
        /// The number as it is written, shortened.
        found: String,
    },
    /// The dtype is none of the format's.
    #[error("unknown dtype {found:?}")]
    UnknownDtype {
        /// The dtype as it is written.
        found: String,
    },

    // Sizes and offsets.
    /// The product of a shape's non-zero dimensions, or its size in bytes, does not fit 64 bits.
    #[error("the size of shape {shape:?} overflows 64 bits")]
    ShapeOverflow {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The elements of a sub-byte dtype do not fill whole bytes.
    #[error("{dtype} elements of shape {shape:?} do not fill whole bytes")]
    PartialByte {
        /// The dtype.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The data range ends before it begins.
    #[error("data_offsets [{begin}, {end}] end before they begin")]
    ReversedOffsets {
        /// The first offset.
        begin: u64,
        /// The second offset.
        end: u64,
    },
    /// The data range is not as long as dtype and shape ask for.
    #[error("{dtype} of shape {shape:?} has {expected} bytes, but data_offsets span {found}")]
    WrongSize {
        /// The dtype.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
        /// The bytes that dtype and shape ask for.
        expected: u64,
        /// The bytes that the offsets span.
        found: u64,
    },
    /// Bytes that belong to no tensor before this one.
    #[error("a hole: the data should begin at {expected}, where the tensor before ends, but begins at {found}")]
    Hole {
        /// Where the tensor before ends.
        expected: u64,
        /// Where this one begins.
        found: u64,
    },
    /// The data begins inside another tensor's.
    #[error("an overlap: the data begins at {found}, but {other:?} reaches to {expected}")]
    Overlap {
        /// The tensor that is overlapped.
        other: String,
        /// Where that tensor ends.
        expected: u64,
        /// Where this one begins.
        found: u64,
    },
    /// Two tensors that are not empty lie on one range.
    #[error("the data lies on bytes [{begin}, {end}], the same as {other:?}")]
    SameRange {
        /// The other tensor.
        other: String,
        /// Where both begin.
        begin: u64,
        /// Where both end.
        end: u64,
    },
    /// A tensor without bytes lies elsewhere than between two tensors or at either end.
    #[error("a tensor without bytes should lie where another ends, such as {expected}, but lies at {found}")]
    EmptyOffBoundary {
        /// The nearest boundary before it.
        expected: u64,
        /// Where it lies.
        found: u64,
    },
    /// The file ends before its last tensor.
    #[error("the tensors have {expected} bytes, but only {found} follow the header")]
    MissingData {
        /// The end of the last tensor.
        expected: u64,
        /// The bytes after the header.
        found: u64,
    },
    /// The file has bytes after its last tensor.
    #[error("the tensors have {expected} bytes, but {found} follow the header")]
    TrailingData {
        /// The end of the last tensor.
        expected: u64,
        /// The bytes after the header.
        found: u64,
    },
    /// More bytes than one allocation can have on this platform.
    #[error("{bytes} bytes are more than this platform can hold in memory at once")]
    TooLargeForMemory {
        /// The size.
        bytes: u64,
    },

    // Views and buffers.
    /// There is no tensor of that name.
    #[error("there is no such tensor")]
    TensorNotFound,
    /// Data is not as long as dtype and shape ask for.
    #[error("{dtype} of shape {shape:?} has {expected} bytes, but the data has {found}")]
    DataLength {
        /// The dtype.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
        /// The bytes that dtype and shape ask for.
        expected: u64,
        /// The bytes that there are.
        found: u64,
    },
    /// A typed access with another type than the tensor's.
    #[error("expected dtype {expected}, found {found}")]
    WrongDtype {
        /// The dtype that was asked for.
        expected: Dtype,
        /// The tensor's dtype.
        found: Dtype,
    },
    /// Borrowed bytes do not start where the element type may start.
    #[error(
        "the data lies at address {address:#x}, but {dtype} elements need a multiple of {alignment}: copy it instead"
    )]
    Misaligned {
        /// The dtype.
        dtype: Dtype,
        /// The alignment that its elements need.
        alignment: usize,
        /// Where the bytes lie in memory.
        address: usize,
    },
    /// A BOOL byte is neither 0 nor 1.
    #[error("element {index} of a BOOL tensor should be 0 or 1, found {found}")]
    InvalidBool {
        /// The element.
        index: u64,
        /// The byte.
        found: u8,
    },
    /// A borrow of little-endian data as native values on a big-endian target.
    #[error("{dtype} data is little-endian and cannot be borrowed on a big-endian target: copy it instead")]
    BigEndian {
        /// The dtype.
        dtype: Dtype,
    },

    // Conversion and frameworks.
    /// A value does not fit the dtype it should become.
    #[error("the value {value} of element {index} does not fit {to}")]
    DoesNotFit {
        /// The element.
        index: u64,
        /// The value.
        value: String,
        /// The dtype it should become.
        to: Dtype,
    },
    /// The framework has no type for a dtype, and no wider one that holds its values exactly.
    #[error("{framework} has no type that holds {dtype} exactly")]
    UnsupportedDtype {
        /// The framework.
        framework: &'static str,
        /// The dtype.
        dtype: Dtype,
    },
    /// The framework would have to widen, and the caller allowed exact dtypes only.
    #[error("{framework} has no {dtype}; it would become {to}, which exact loading does not allow")]
    WouldWiden {
        /// The framework.
        framework: &'static str,
        /// The dtype in the file.
        dtype: Dtype,
        /// What it would become.
        to: Dtype,
    },
    /// The framework's tensor has elements that the format has no dtype for.
    #[error("{framework} elements of type {found} have no dtype in the format")]
    UnsupportedFrameworkType {
        /// The framework.
        framework: &'static str,
        /// The framework's name for the type.
        found: String,
    },
    /// The framework itself failed.
    #[error("{framework} failed")]
    Framework {
        /// The framework.
        framework: &'static str,
        /// What it said.
        source: Box<dyn core::error::Error + Send + Sync>,
    },

    // Saving.
    /// A tensor has the name that the format reserves.
    #[error("the name __metadata__ is reserved by the format")]
    ReservedName,
    /// The data of a tensor is not what its source said it would be.
    #[error("the tensor should give {expected} bytes, but gave {found}")]
    SourceLength {
        /// The bytes that dtype and shape ask for.
        expected: u64,
        /// The bytes that came; at least this many, if more came than expected.
        found: u64,
    },
    /// The alignment of the data section is not a power of two from 8 to 4096.
    #[error("the data can be aligned to a power of two from 8 to 4096, not to {found}")]
    BadAlignment {
        /// What was asked for.
        found: usize,
    },

    // Files and checkpoints.
    /// The operating system failed.
    #[cfg(feature = "std")]
    #[error("{0}")]
    Io(#[source] std::io::Error),
    /// The path is neither a regular file nor a directory.
    #[cfg(feature = "std")]
    #[error("expected a regular file, found {found}")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// A directory without a checkpoint, or with several.
    #[cfg(feature = "std")]
    #[error("expected an index (*.safetensors.index.json) or exactly one *.safetensors file, found {}", NameList(.found))]
    NoCheckpoint {
        /// The names of the files that would do, were there one only.
        found: Vec<String>,
    },
    /// An index file that does not say what an index must say.
    #[cfg(feature = "std")]
    #[error("the index is malformed: {problem}")]
    BadIndex {
        /// What is wrong.
        problem: IndexProblem,
    },
    /// The index sends a tensor to a shard that does not have it.
    #[cfg(feature = "std")]
    #[error("the index says it is in {shard:?}, which does not have it")]
    NotInShard {
        /// The shard's file name.
        shard: String,
    },
}

/// What is wrong with an index file.
#[cfg(feature = "std")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// It is larger than an index may be.
    #[error("it has {found} bytes, over the limit of {limit}")]
    TooLarge {
        /// The most that is allowed.
        limit: u64,
        /// Its size.
        found: u64,
    },
    /// It is not JSON, or not of an index's form, or has a duplicate key.
    #[error("{0}")]
    Json(String),
    /// `weight_map` is empty.
    #[error("weight_map is empty")]
    Empty,
    /// A shard's file name could lead elsewhere or is none.
    #[error("{name:?} is not a file name below the index's folder that ends in .safetensors")]
    UnsafeName {
        /// The name.
        name: String,
    },
}

/// The first byte of something, or that there is none.
struct Found(Option<u8>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(byte) if byte.is_ascii_graphic() => write!(f, "{:?}", char::from(byte)),
            Some(byte) => write!(f, "the byte {byte:#04x}"),
            None => f.write_str("nothing but white space"),
        }
    }
}

/// File names for a message: all of a few, the first of many.
#[cfg(feature = "std")]
struct NameList<'a>(&'a [String]);

#[cfg(feature = "std")]
impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.0.is_empty() {
            return f.write_str("neither");
        }
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{name:?}", if i == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
