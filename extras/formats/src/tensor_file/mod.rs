//! [`TensorFile`]: a file of another format that reads like a safetensors file.

mod blocks;
mod build;
mod data;
mod scratch;
mod single;
mod strided;
mod undo;
mod whole;

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use blocks::Blocks;
pub(crate) use build::{Builder, Tensor};
pub(crate) use data::Reason;
pub(crate) use data::Scales;
pub(crate) use data::{Data, swap};
use safetensors_core::ReadAt;
use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::Checkpoint;
pub(crate) use scratch::Scratch;
use single::Single;
pub(crate) use single::Span;
pub(crate) use strided::Placement;
pub(crate) use undo::Undo;
pub(crate) use whole::{Archived, Directory, Region, Whole, WholeTensor};
use whole::{Parts, assembled};

use crate::Format;
use crate::error::Result;
use crate::input::Input;
pub(crate) use crate::zipped::Place;
use crate::zipped::Zipped;

/// An open file of another format that reads like a safetensors file with the same tensors.
///
/// Core opens it as a [`Checkpoint`](safetensors_core::Checkpoint). Only requested bytes are
/// copied: from their place for C order, gathered in windows of at most 16 MiB for other strides, or
/// dequantised by block with [`Options::dequantize`](crate::Options::dequantize). A compressed
/// member is unpacked to a temporary file at its first read.
///
/// It can also be a directory of files with pieces of tensors.
///
/// ```
/// use safetensors_core::{Checkpoint, TensorBuf};
/// use safetensors_formats::{Format, Options, TensorFile, npy};
///
/// let mut array = Vec::new();
/// npy::write(&mut array, &TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?)?;
/// let file = TensorFile::from_source(array, "weight.npy", &Options::new())?;
/// assert_eq!(file.format(), Format::Npy);
///
/// let checkpoint = Checkpoint::from_source(file, "weight.npy")?;
/// assert_eq!(checkpoint.tensor("weight")?.read()?.into_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TensorFile {
    format: Format,
    content: Content,
    /// With other names of tied tensors.
    names: HashSet<String>,
    stored: BTreeMap<String, Stored>,
    pub(crate) findings: Vec<Finding>,
    notes: Vec<String>,
    split: Option<Split>,
}

/// Files, each with its path.
pub(crate) type Opened = Vec<(PathBuf, TensorFile)>;

#[derive(Debug)]
enum Content {
    File(Single),
    Directory(Box<Whole>),
    Parts(Box<Checkpoint<Parts>>),
}

#[derive(Debug)]
pub(crate) enum Container {
    File(Arc<Input<'static>>),
    Zip(Arc<Zipped<'static>>, Scratch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) number: u16,
    pub(crate) count: u16,
    /// In all parts, if the file has it.
    pub(crate) tensors: Option<u64>,
    /// In this part.
    pub(crate) own: u64,
}

/// The storage of a tensor, if its dtype does not show it: it is quantised, or has a type without
/// dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The type's name in its format, such as `Q4_K`.
    pub type_name: String,
    /// The dimensions in the file, outermost first. They differ from the tensor's if it is listed
    /// as bytes, and are `[0]` for an object of an unknown class.
    pub shape: Vec<usize>,
    /// The bytes in the file.
    pub byte_len: u64,
    /// `true` if values can be read, with the tensor's dtype.
    pub is_readable: bool,
    /// `true` if [`Options::dequantize`](crate::Options::dequantize) makes values readable.
    pub is_quantised: bool,
}

impl Stored {
    pub(crate) fn unreadable(type_name: String, shape: Vec<usize>, byte_len: u64) -> Self {
        Self { type_name, shape, byte_len, is_readable: false, is_quantised: false }
    }
}

impl TensorFile {
    fn unchanged(self) -> Result<Self> {
        self.inputs().try_for_each(Input::check_unchanged)?;
        Ok(self)
    }

    fn with(format: Format, content: Content, names: HashSet<String>) -> Self {
        Self {
            format,
            content,
            names,
            stored: BTreeMap::new(),
            findings: Vec::new(),
            notes: Vec::new(),
            split: None,
        }
    }

    /// Returns the format of the file or directory.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the given source, or a directory's first file, in the other format.
    pub fn source(&self) -> &dyn ReadAt {
        self.sources().next().expect("there is a file")
    }

    /// Returns the bytes of the file, or of a directory's files with tensors.
    /// [`byte_len`](ReadAt::byte_len) is the length as a safetensors file.
    pub fn file_len(&self) -> u64 {
        self.sources().fold(0, |all, source| all.saturating_add(source.byte_len()))
    }

    fn sources(&self) -> Box<dyn Iterator<Item = &dyn ReadAt> + '_> {
        match &self.content {
            Content::Parts(parts) => Box::new(assembled(parts).sources().map(|source| &**source)),
            _ => Box::new(self.inputs().map(|input| &*input.source)),
        }
    }

    /// Returns `true` if a tensor has this name, or a tied one.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns the storage of a tensor, if its dtype does not show it.
    pub fn stored(&self, name: &str) -> Option<&Stored> {
        self.stored.get(name)
    }

    /// Returns tensors with a storage that the dtype does not show, by name.
    pub fn all_stored(&self) -> impl ExactSizeIterator<Item = (&str, &Stored)> {
        self.stored.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    /// Returns oddities, like [`Checkpoint::audit`](safetensors_core::Checkpoint::audit): skipped
    /// tensors that the index places elsewhere; a wrong `total_size`; unlisted files of a
    /// directory.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Of all tensors. `None` if some cannot be read.
    pub(crate) fn data_len(&self) -> Option<u64> {
        let Content::File(file) = &self.content else { return None };
        let is_known = self.stored.values().all(|stored| stored.is_readable);
        is_known.then(|| file.byte_len - file.header.len() as u64)
    }

    /// Describes skipped content for people: the number of values in a PyTorch file, the first
    /// names in a directory.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn split(&self) -> Option<Split> {
        self.split
    }

    /// In no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(crate) fn into_layout(self) -> (Vec<u8>, Vec<Span>) {
        match self.content {
            Content::File(file) => (file.header, file.spans),
            Content::Directory(_) | Content::Parts(_) => Default::default(),
        }
    }

    pub(crate) fn has_layout(&self, (header, spans): &(Vec<u8>, Vec<Span>)) -> bool {
        match &self.content {
            Content::File(file) => file.header == *header && file.spans == *spans,
            Content::Directory(_) | Content::Parts(_) => false,
        }
    }

    /// Compares all checksums in the file, which reading tensors does not. Returns their number:
    /// one for each member of an archive, 0 for other files.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io) with file and member for a wrong checksum.
    pub fn verify_checksums(&self) -> Result<u64> {
        match &self.content {
            Content::File(file) => match &file.container {
                Container::File(_) => Ok(0),
                Container::Zip(zipped, _) => zipped.verify_checksums(),
            },
            Content::Directory(whole) => whole.verify_checksums(),
            Content::Parts(_) => Ok(0),
        }
    }

    fn inputs(&self) -> impl Iterator<Item = &Input<'static>> {
        let (single, several) = match &self.content {
            Content::File(file) => (Some(file.container.input()), &[][..]),
            Content::Directory(whole) => (None, whole.files()),
            Content::Parts(_) => (None, &[][..]),
        };
        single.into_iter().chain(several.iter().map(|input| &**input))
    }
}

impl Container {
    fn input(&self) -> &Input<'static> {
        match self {
            Self::File(input) => input,
            Self::Zip(zipped, _) => &zipped.input,
        }
    }
}

impl TensorFile {
    fn content(&self) -> &dyn ReadAt {
        match &self.content {
            Content::File(file) => file,
            Content::Directory(whole) => whole.assembled(),
            Content::Parts(parts) => assembled(parts),
        }
    }
}

impl ReadAt for TensorFile {
    fn byte_len(&self) -> u64 {
        self.content().byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.content().read_exact_at(buf, offset)
    }

    fn inner(&self) -> Option<&dyn ReadAt> {
        Some(self.content())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
