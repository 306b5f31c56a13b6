//! [`Finding`]: an oddity that breaks no rule.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::format::error::{Escaped, Quoted};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// The file departs from the text of the format, or from its requirements for writers. Readers
    /// accept it.
    Departure,
    /// The checkpoint departs from the author's probable intent. It may lack tensors, or contain
    /// wrong information.
    Warning,
}

/// One oddity of a checkpoint that can be opened, described by `Display`. Offsets are in bytes,
/// from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The header has white space before its opening brace.
    LeadingSpace {
        /// The file.
        file: PathBuf,
        /// Bytes of white space.
        bytes: u64,
    },
    /// The header is padded with white space other than spaces.
    ForeignPadding {
        /// The file.
        file: PathBuf,
    },
    /// The data does not start at a multiple of 8.
    MisalignedData {
        /// The file.
        file: PathBuf,
        /// The offset of its first byte.
        offset: u64,
    },
    /// Tensors do not begin at a multiple of their dtype's alignment.
    MisalignedTensors {
        /// The file.
        file: PathBuf,
        /// The first such tensor.
        tensor: String,
        /// The offset of its first byte.
        offset: u64,
        /// `offset` should be a multiple of it.
        alignment: u64,
        /// How many others there are.
        others: u64,
    },
    /// A file has tensors that the index does not place in it.
    UnindexedTensors {
        /// The file.
        file: PathBuf,
        /// The first such tensor.
        tensor: String,
        /// How many others there are.
        others: u64,
    },
    /// The `total_size` in the index is not the size of all tensors.
    WrongTotalSize {
        /// The index.
        file: PathBuf,
        /// The bytes of all tensors in the index.
        expected: u64,
        /// The `total_size` in the index.
        found: u64,
    },
    /// A file of tensors in the directory of the index that no index there names.
    StrayFile {
        /// The file.
        file: PathBuf,
    },
    /// A directory opens as `model.safetensors`, and has an index that does not name that file.
    ShadowedIndex {
        /// The file.
        file: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A backup of a header is next to the file, left by an interrupted edit or needed by a running
    /// one. The next edit of the file, or [`restore_header`](crate::edit::restore_header), removes
    /// it.
    HeaderBackup {
        /// The file.
        file: PathBuf,
        /// The backup.
        backup: PathBuf,
    },
    /// A BOOL tensor has bytes that are neither 0 nor 1. It can only be read as bytes.
    InvalidBools {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first such element.
        index: u64,
        /// Its byte.
        found: u8,
        /// How many others there are.
        others: u64,
    },
}

impl Finding {
    /// Returns how serious the finding is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::LeadingSpace { .. }
            | Self::ForeignPadding { .. }
            | Self::MisalignedData { .. }
            | Self::MisalignedTensors { .. } => Severity::Departure,
            Self::UnindexedTensors { .. }
            | Self::WrongTotalSize { .. }
            | Self::StrayFile { .. }
            | Self::ShadowedIndex { .. }
            | Self::HeaderBackup { .. }
            | Self::InvalidBools { .. } => Severity::Warning,
        }
    }

    fn file(&self) -> &Path {
        match self {
            Self::LeadingSpace { file, .. }
            | Self::ForeignPadding { file }
            | Self::MisalignedData { file, .. }
            | Self::MisalignedTensors { file, .. }
            | Self::UnindexedTensors { file, .. }
            | Self::WrongTotalSize { file, .. }
            | Self::StrayFile { file }
            | Self::ShadowedIndex { file, .. }
            | Self::HeaderBackup { file, .. }
            | Self::InvalidBools { file, .. } => file,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Escaped(&self.file().to_string_lossy()))?;
        match self {
            Self::LeadingSpace { bytes, .. } => {
                let s = if *bytes == 1 { "" } else { "s" };
                write!(f, "the header starts with {bytes} byte{s} of white space, ")?;
                f.write_str("not with its opening brace")
            }
            Self::ForeignPadding { .. } => {
                f.write_str("the header is padded with white space other than spaces")
            }
            Self::MisalignedData { offset, .. } => {
                write!(f, "the data starts at byte {offset}, not at a multiple of 8")
            }
            Self::MisalignedTensors { tensor, offset, alignment, others, .. } => {
                let tensor = Quoted(tensor);
                let others = Others(*others, "tensor", " too");
                let should = format_args!("not at a multiple of {alignment}{others}");
                write!(f, "tensor {tensor} begins at byte {offset}, {should}")
            }
            Self::UnindexedTensors { tensor, others, .. } => {
                let others = Others(*others, "tensor", "");
                write!(f, "the index leaves out tensor {}{others}", Quoted(tensor))
            }
            Self::WrongTotalSize { expected, found, .. } => {
                write!(f, "total_size is {found}, but the tensors have {expected} bytes")
            }
            Self::StrayFile { .. } => f.write_str("is next to the index, which does not name it"),
            Self::ShadowedIndex { index, .. } => {
                let index = index.file_name().unwrap_or_default().to_string_lossy();
                write!(
                    f,
                    "the directory opens as this file and not as {} next to it, which does not \
                     name it",
                    Escaped(&index)
                )
            }
            Self::HeaderBackup { backup, .. } => {
                let backup = backup.to_string_lossy();
                write!(
                    f,
                    "an interrupted edit left a backup of its header, {}; the next edit removes it",
                    Escaped(&backup)
                )
            }
            Self::InvalidBools { tensor, index, found, others, .. } => {
                let tensor = Quoted(tensor);
                let others = Others(*others, "element", " too");
                write!(f, "element {index} of the BOOL tensor {tensor} ")?;
                write!(f, "should be 0 or 1, found {found}{others}")
            }
        }
    }
}

/// Displays how many others there are, such as `, and 1 other tensor too`.
struct Others(u64, &'static str, &'static str);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what, too) = *self;
        let comma = if too.is_empty() { "" } else { "," };
        let plural = if count == 1 { "" } else { "s" };
        if count == 0 {
            return Ok(());
        }
        write!(f, "{comma} and {count} other {what}{plural}{too}")
    }
}
