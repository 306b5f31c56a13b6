//! [`TensorFile`]: a file of another format that reads like a safetensors file.
//!
//! | file | content |
//! |---|---|
//! | `mod` | the open file, and its bytes at any position |
//! | `build` | the header of the safetensors file that the tensors make |
//! | `single` | the tensors of a file |
//! | `data` | the source of a tensor's bytes |
//! | `strided`, `boxes` | elements that are not in C order |
//! | `undo` | numbers of GGUF that the model has in another form |
//! | `scratch` | members of archives, unpacked to a temporary file |
//! | `whole` | tensors joined from pieces in the files of a directory |

mod blocks;
mod boxes;
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
use std::sync::Arc;

pub(crate) use blocks::Blocks;
pub(crate) use build::{Builder, Tensor};
pub(crate) use data::Reason;
pub(crate) use data::Scales;
pub(crate) use data::{Data, swap};
use safetensors_core::ReadAt;
use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::{Assembled, Checkpoint};
use safetensors_core::io::FileSource;
pub(crate) use scratch::Scratch;
use single::Single;
pub(crate) use single::Span;
pub(crate) use strided::Placement;
pub(crate) use undo::Undo;
use whole::assembled;
pub(crate) use whole::{Archived, Directory, Region, Whole, WholeTensor};

use crate::Format;
use crate::error::Result;
use crate::input::Input;
pub(crate) use crate::zipped::Place;
use crate::zipped::Zipped;

/// An open file of another format that reads like a safetensors file with the same tensors.
///
/// Its bytes form a safetensors file: a header that is made when the file is opened, then the
/// tensors. So core opens it as a [`Checkpoint`](safetensors_core::Checkpoint), and everything that
/// works on checkpoints works on it: tensors and slices of them are read, converted and saved. Only
/// requested bytes are copied. A tensor in C order is read from its place in the file. A tensor
/// with other strides is gathered, in windows of at most 4 MiB. A quantised tensor of GGUF is
/// dequantised block by block, if [the options](crate::Options::dequantize) ask for it.
///
/// A compressed member of an archive is unpacked to a temporary file when it is first read.
///
/// It can also be a directory of files with the pieces of tensors. A tensor is then read from all
/// files that have a piece of it.
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
pub struct TensorFile<S = FileSource> {
    format: Format,
    content: Content<S>,
    /// The names of all tensors, also the other names of tied ones.
    names: HashSet<String>,
    stored: BTreeMap<String, Stored>,
    pub(crate) findings: Vec<Finding>,
    notes: Vec<String>,
    split: Option<Split>,
}

/// Where the bytes of the safetensors file come from.
#[derive(Debug)]
enum Content<S> {
    File(Single<S>),
    Directory(Box<Whole<S>>),
    /// The safetensors files of a directory, which core has assembled.
    Parts(Box<Checkpoint<Assembled<S>>>),
}

/// The file or archive that holds the tensors.
#[derive(Debug)]
pub(crate) enum Container<S> {
    File(Arc<Input<S>>),
    /// An archive, and its members that are unpacked.
    Zip(Arc<Zipped<S>>, Scratch),
}

/// Which part of a split file a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The number of the part, from 0 on.
    pub(crate) number: u16,
    /// How many parts there are.
    pub(crate) count: u16,
    /// The number of tensors in all parts, if the file has it.
    pub(crate) tensors: Option<u64>,
    /// How many of them this part has.
    pub(crate) own: u64,
}

/// How a tensor is stored in a file of another format, if its dtype does not show that: its
/// elements are quantised, or have a type that safetensors lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The name of the type in its format, such as `Q4_K`.
    pub type_name: String,
    /// The dimensions in the file, outermost first. The dimensions of the tensor are others if it
    /// is listed as bytes: because no dtype has such elements, or because
    /// [`Options::blocks`](crate::Options::blocks) asks for that. An object of an unknown class has
    /// `[0]`: no element of it is known.
    pub shape: Vec<usize>,
    /// The bytes that the tensor has in the file.
    pub byte_len: u64,
    /// Whether values can be read. The dtype of the tensor is then the values' dtype.
    pub is_readable: bool,
    /// Whether [`Options::dequantize`](crate::Options::dequantize) makes values readable.
    pub is_quantised: bool,
}

impl Stored {
    /// Describes a tensor that cannot be read.
    pub(crate) fn unreadable(type_name: String, shape: Vec<usize>, byte_len: u64) -> Self {
        Self { type_name, shape, byte_len, is_readable: false, is_quantised: false }
    }
}

impl<S: ReadAt> TensorFile<S> {
    /// Fails if a source has changed since it was opened.
    fn unchanged(self) -> Result<Self> {
        self.inputs().try_for_each(Input::check_unchanged)?;
        Ok(self)
    }

    /// Makes a file with tensors of these names, without findings or notes.
    fn with(format: Format, content: Content<S>, names: HashSet<String>) -> Self {
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

    /// Returns the format of the file, or of the directory.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the given source itself; for a directory, its first file. Reading from it reads the
    /// other format.
    pub fn source(&self) -> &S {
        self.sources().next().expect("there is a file")
    }

    /// Returns the number of bytes of the file itself, or of all files of the directory that hold
    /// tensors. [`byte_len`](ReadAt::byte_len) is the length as a safetensors file.
    pub fn file_len(&self) -> u64 {
        self.sources().fold(0, |all, source| all.saturating_add(source.byte_len()))
    }

    /// Returns the file, or the files of the directory.
    fn sources(&self) -> Box<dyn Iterator<Item = &S> + '_> {
        match &self.content {
            Content::Parts(parts) => Box::new(assembled(parts).sources()),
            _ => Box::new(self.inputs().map(|input| &input.source)),
        }
    }

    /// Returns `true` if there is a tensor of this name. It may be another name of a tied tensor.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns how a tensor is stored, if its dtype does not show that. `None` for a plain tensor,
    /// and for an unknown name.
    pub fn stored(&self, name: &str) -> Option<&Stored> {
        self.stored.get(name)
    }

    /// Returns all tensors with a dtype that does not show how they are stored, by name.
    pub fn all_stored(&self) -> impl ExactSizeIterator<Item = (&str, &Stored)> {
        self.stored.iter().map(|(name, stored)| (name.as_str(), stored))
    }

    /// Returns oddities, as [`Checkpoint::audit`](safetensors_core::Checkpoint::audit) finds them
    /// in safetensors files: tensors that the index of the file places in another one or nowhere,
    /// which are not part of the checkpoint; a wrong `total_size` of the index, at the first shard;
    /// files of a directory that it does not list. Empty if there are none.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the bytes of all tensors of a file. `None` if some cannot be read: they are listed
    /// as others.
    pub(crate) fn data_len(&self) -> Option<u64> {
        let Content::File(file) = &self.content else { return None };
        let is_known = self.stored.values().all(|stored| stored.is_readable);
        is_known.then(|| file.byte_len - file.header.len() as u64)
    }

    /// Describes the content that is not tensors, for a person to read: the number of skipped
    /// numbers and texts of a file of PyTorch, and the names of the first skipped values of a
    /// directory. Empty if there is none.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns which part of a split file it is.
    pub(crate) fn split(&self) -> Option<Split> {
        self.split
    }

    /// Returns the names of all tensors, in no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns the header of a single file, and the places of its tensors.
    pub(crate) fn into_layout(self) -> (Vec<u8>, Vec<Span>) {
        match self.content {
            Content::File(file) => (file.header, file.spans),
            Content::Directory(_) | Content::Parts(_) => Default::default(),
        }
    }

    /// Returns whether [`into_layout`](Self::into_layout) would give this.
    pub(crate) fn has_layout(&self, (header, spans): &(Vec<u8>, Vec<Span>)) -> bool {
        match &self.content {
            Content::File(file) => file.header == *header && file.spans == *spans,
            Content::Directory(_) | Content::Parts(_) => false,
        }
    }

    /// Reads everything that has a checksum in the file, and compares it. Returns the number of
    /// checksums: an archive has one for each member, other files have none.
    ///
    /// Tensors are read without this check, because a checksum is one of a whole member.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io) with the file and the member for a wrong checksum.
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

    /// Returns the files that are not core's.
    fn inputs(&self) -> impl Iterator<Item = &Input<S>> {
        let (single, several) = match &self.content {
            Content::File(file) => (Some(file.container.input()), &[][..]),
            Content::Directory(whole) => (None, whole.files()),
            Content::Parts(_) => (None, &[][..]),
        };
        single.into_iter().chain(several.iter().map(|input: &Arc<Input<S>>| &**input))
    }
}

impl<S> Container<S> {
    fn input(&self) -> &Input<S> {
        match self {
            Self::File(input) => input,
            Self::Zip(zipped, _) => &zipped.input,
        }
    }
}

impl<S: ReadAt + 'static> TensorFile<S> {
    /// Returns the bytes of the safetensors file.
    fn content(&self) -> &dyn ReadAt {
        match &self.content {
            Content::File(file) => file,
            Content::Directory(whole) => whole.assembled(),
            Content::Parts(parts) => assembled(parts),
        }
    }
}

impl<S: ReadAt + 'static> ReadAt for TensorFile<S> {
    fn byte_len(&self) -> u64 {
        self.content().byte_len()
    }

    /// Reads the bytes that the safetensors file would have there.
    ///
    /// # Errors
    ///
    /// Any error of the source. [`InvalidData`](io::ErrorKind::InvalidData) with an
    /// [`Error`](crate::Error) of this crate for a tensor with values that cannot be read, and for
    /// damaged members of archives.
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
