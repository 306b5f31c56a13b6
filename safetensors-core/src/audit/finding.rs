//! [`Finding`]: one thing that is odd about a checkpoint.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Escaped, Quoted};

/// What a finding departs from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// From the text of the format, or from what its writers are asked to do. Readers take the file
    /// as it is.
    Departure,
    /// From what whoever made the checkpoint will have meant: it may lack tensors, or say something
    /// wrong.
    Warning,
}

/// One thing that is odd about a checkpoint that can be opened. `Display` says it in a sentence
/// that begins with the file.
///
/// Offsets are in bytes, from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The header has white space before its opening brace.
    LeadingSpace {
        /// The file.
        file: PathBuf,
        /// How much.
        bytes: u64,
    },
    /// The header is padded with other white space than spaces.
    ForeignPadding {
        /// The file.
        file: PathBuf,
    },
    /// The data does not start at a multiple of 8.
    MisalignedData {
        /// The file.
        file: PathBuf,
        /// Where it starts.
        offset: u64,
    },
    /// Tensors do not lie at a multiple of their dtype's alignment.
    MisalignedTensors {
        /// The file.
        file: PathBuf,
        /// The first of them.
        tensor: String,
        /// Where it lies.
        offset: u64,
        /// What that should be a multiple of.
        alignment: u64,
        /// How many others there are.
        others: u64,
    },
    /// A file has tensors that the index does not send there.
    UnindexedTensors {
        /// The file.
        file: PathBuf,
        /// The first of them.
        tensor: String,
        /// How many others there are.
        others: u64,
    },
    /// The index gives another size of all tensors than they have.
    WrongTotalSize {
        /// The index.
        file: PathBuf,
        /// The bytes of the tensors that it names.
        expected: u64,
        /// What it says.
        found: u64,
    },
    /// A file of tensors lies beside an index, and neither that one nor another one there names it.
    StrayFile {
        /// The file.
        file: PathBuf,
    },
    /// A directory has both `model.safetensors`, which it opens as, and an index that does not name
    /// that file.
    ShadowedIndex {
        /// The file.
        file: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A backup of a header lies beside the file. An edit that was interrupted left it, or one that
    /// is under way needs it. The next edit of the file, or
    /// [`recover`](crate::edit::recover), removes it.
    HeaderBackup {
        /// The file.
        file: PathBuf,
        /// The backup.
        backup: PathBuf,
    },
    /// A tensor of dtype BOOL has bytes that are neither 0 nor 1, so that it can only be read as
    /// bytes.
    InvalidBools {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first element that is none.
        index: u64,
        /// Its byte.
        found: u8,
        /// How many other such elements there are.
        others: u64,
    },
}

impl Finding {
    /// How bad it is.
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

    /// The file that it is about.
    pub fn file(&self) -> &Path {
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
                let bytes = Counted(*bytes, "byte");
                write!(
                    f,
                    "the header starts with {bytes} of white space, not with its opening brace"
                )
            }
            Self::ForeignPadding { .. } => {
                f.write_str("the header is padded with other white space than spaces")
            }
            Self::MisalignedData { offset, .. } => {
                write!(f, "the data starts at byte {offset}, not at a multiple of 8")
            }
            Self::MisalignedTensors { tensor, offset, alignment, others, .. } => {
                let tensor = Quoted(tensor);
                write!(
                    f,
                    "tensor {tensor} lies at byte {offset}, not at a multiple of {alignment}"
                )?;
                if *others > 0 {
                    write!(f, ", and {} too", Counted(*others, "other tensor"))
                } else {
                    Ok(())
                }
            }
            Self::UnindexedTensors { tensor, others, .. } => {
                write!(f, "the index leaves out tensor {}", Quoted(tensor))?;
                if *others > 0 {
                    write!(f, " and {}", Counted(*others, "other tensor"))
                } else {
                    Ok(())
                }
            }
            Self::WrongTotalSize { expected, found, .. } => {
                write!(f, "total_size is {found}, but the tensors have {expected} bytes")
            }
            Self::StrayFile { .. } => f.write_str("lies beside the index, which does not name it"),
            Self::ShadowedIndex { index, .. } => {
                let index = index.file_name().unwrap_or_default().to_string_lossy();
                write!(
                    f,
                    "the directory opens as this file and not as {} beside it, which does not name it",
                    Escaped(&index)
                )
            }
            Self::HeaderBackup { backup, .. } => {
                let backup = backup.to_string_lossy();
                write!(
                    f,
                    "a backup of its header lies beside it, {}, which an edit left that was \
                     interrupted; the next edit removes it",
                    Escaped(&backup)
                )
            }
            Self::InvalidBools { tensor, index, found, others, .. } => {
                let tensor = Quoted(tensor);
                write!(
                    f,
                    "element {index} of the BOOL tensor {tensor} should be 0 or 1, found {found}"
                )?;
                if *others > 0 {
                    write!(f, ", and {} too", Counted(*others, "other element"))
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// A number of things: `1 byte`, `2 bytes`.
struct Counted(u64, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}
