//! [`Whole`]: the tensors of a directory, in pieces in its files.
//!
//! Core joins and checks the pieces ([`Assembled`]). This module has their sources: files, and
//! pieces that are not in C order.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::{self, Assembled, TensorPiece};
use safetensors_core::io::Requests;
use safetensors_core::{Checkpoint, Dtype, Metadata, ReadAt, shape};

use super::build::check_expansion;
use super::{Container, Content, Data, Place, Stored, TensorFile};
use crate::budget::{Budget, ENTRY};
use crate::error::{Error, Result, to_io};
use crate::input::Input;
use crate::window::Window;
use crate::zipped::Zipped;
use crate::{Format, Limits};

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) files: Vec<(PathBuf, Arc<Input<'static>>)>,
    pub(crate) tensors: Vec<WholeTensor>,
    /// Other names of tensors, with the name that has the bytes.
    pub(crate) aliases: Vec<(String, Arc<str>)>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) notes: Vec<String>,
    pub(crate) archives: Vec<Archived>,
    /// Files that no file lists.
    pub(crate) strays: Vec<PathBuf>,
}

impl Directory {
    /// Has no tensors yet, and at least one file.
    pub(crate) fn new(files: Vec<(PathBuf, Arc<Input<'static>>)>) -> Self {
        let tensors = Vec::new();
        let aliases = Vec::new();
        let metadata = BTreeMap::new();
        let notes = Vec::new();
        let archives = Vec::new();
        let strays = Vec::new();
        Self { files, tensors, aliases, metadata, notes, archives, strays }
    }

    pub(crate) fn of_archives(files: Vec<(PathBuf, Arc<Input<'static>>)>) -> Self {
        let lens = files.iter().map(|(_, input)| input.source.byte_len()).enumerate();
        let archives = lens.map(|(file, len)| Archived { file, start: 0, len }).collect();
        Self { archives, ..Self::new(files) }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WholeTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) stored: Option<Stored>,
    /// The number of the file, the region of the tensor, and the bytes in the file.
    pub(crate) pieces: Vec<(usize, Region, Data)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// First position and extent in each dimension.
    Box { offsets: Vec<usize>, sizes: Vec<usize> },
    /// Consecutive elements in C order.
    Flat { first: usize, len: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Archived {
    pub(crate) file: usize,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Region {
    pub(crate) fn whole(shape: &[usize]) -> Self {
        Self::Box { offsets: vec![0; shape.len()], sizes: shape.to_vec() }
    }

    fn byte_len(&self, dtype: Dtype) -> Result<u64> {
        let sizes = match self {
            Self::Box { sizes, .. } => sizes,
            Self::Flat { len, .. } => std::slice::from_ref(len),
        };
        Ok(shape::byte_len(dtype, sizes)?)
    }

    fn at(self, source: usize, offset: u64) -> TensorPiece {
        match self {
            Self::Box { offsets, sizes } => TensorPiece::new(source, offset, offsets, sizes),
            Self::Flat { first, len } => TensorPiece::flat(source, offset, first, len),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Whole {
    assembled: Assembled<Origin>,
    files: Vec<Arc<Input<'static>>>,
    archives: Vec<Archived>,
    limits: Limits,
}

impl Whole {
    pub(super) fn assembled(&self) -> &Assembled<Origin> {
        &self.assembled
    }

    pub(super) fn files(&self) -> &[Arc<Input<'static>>] {
        &self.files
    }

    pub(super) fn verify_checksums(&self) -> Result<u64> {
        let mut checked = 0;
        for &Archived { file, start, len } in &self.archives {
            let input = &self.files[file];
            let window = Window::new(&input.source, start, len).ok_or_else(|| {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                Error::from(error).in_file(&input.file)
            })?;
            let archive =
                Zipped::open(Input::new(Arc::new(window), input.file.as_ref()), &self.limits)?;
            checked += archive.verify_checksums()?;
        }
        Ok(checked)
    }
}

impl TensorFile {
    pub(crate) fn of_directory(
        format: Format,
        directory: Directory,
        budget: &Budget,
    ) -> Result<Self> {
        let Directory { files, tensors, aliases, mut metadata, notes, archives, strays } =
            directory;
        let inputs: Vec<_> = files.iter().map(|(_, input)| Arc::clone(input)).collect();
        let lens = inputs.iter().map(|input| input.source.byte_len());
        let file_len = lens.fold(0, u64::saturating_add);
        let mut all = 0_u64;
        let mut names = HashSet::new();
        let mut stored = BTreeMap::new();
        let mut sources: Vec<_> =
            files.into_iter().map(|(path, input)| (path, Origin::File(input))).collect();
        let mut wholes = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let WholeTensor { name, dtype, shape, stored: how, pieces } = tensor;
            budget.keep(2 * (name.len() + size_of::<WholeTensor>()))?;
            budget.keep_all::<[(TensorPiece, usize); 2]>(pieces.len())?;
            let located = |error: Error| error.in_tensor(&name);
            let byte_len = shape::byte_len(dtype, &shape).map_err(|kind| located(kind.into()))?;
            all = all.saturating_add(byte_len);
            check_expansion(file_len, all).map_err(located)?;
            let pieces = pieces.into_iter().map(|(file, region, data)| {
                if let Data::Plain(Place::At(offset)) = data {
                    return Ok(region.at(file, offset));
                }
                let container = Container::File(Arc::clone(&inputs[file]));
                let byte_len = region.byte_len(dtype)?;
                sources
                    .push((sources[file].0.clone(), Origin::Piece { container, data, byte_len }));
                Ok(region.at(sources.len() - 1, 0))
            });
            let pieces = pieces.collect::<Result<Vec<_>>>().map_err(located)?;
            names.insert(name.clone());
            stored.extend(how.map(|how| (name.clone(), how)));
            wholes.push(checkpoint::WholeTensor { name, dtype, shape, pieces });
        }
        names.extend(aliases.iter().map(|(alias, _)| alias.clone()));
        add_aliases(&mut metadata, aliases, budget)?;
        let assembled = Assembled::new(sources, wholes, &Metadata::from_iter(metadata))?;
        let whole = Whole { assembled, files: inputs, archives, limits: budget.limits().clone() };
        let content = Content::Directory(Box::new(whole));
        let findings = strays.into_iter().map(|file| Finding::StrayFile { file }).collect();
        Self { stored, findings, notes, ..Self::with(format, content, names) }.unchanged()
    }

    /// Of parts in safetensors files. `None` if core found another checkpoint.
    pub(crate) fn of_parts(whole: Checkpoint<Parts>) -> Option<Self> {
        let is_in_parts = whole.files().first()?.path().ends_with("*.safetensors");
        let aliases = whole.aliases().map(|(alias, _)| alias);
        let names = whole.tensors().map(|tensor| tensor.name()).chain(aliases);
        let names = names.map(str::to_owned).collect();
        is_in_parts.then(|| Self::with(Format::Dcp, Content::Parts(Box::new(whole)), names))
    }
}

fn add_aliases(
    metadata: &mut BTreeMap<String, String>,
    aliases: Vec<(String, Arc<str>)>,
    budget: &Budget,
) -> Result<()> {
    for (alias, kept) in aliases {
        budget.keep(kept.len() + ENTRY)?;
        metadata.insert(alias, kept.as_ref().into());
    }
    // Core writes and reads a header of it.
    budget.keep(metadata.iter().map(|(key, text)| 2 * (key.len() + text.len())).sum())?;
    metadata.insert("format".into(), "pt".into());
    Ok(())
}

/// Safetensors files of a directory, assembled by core.
pub(super) type Parts = Assembled<Box<dyn ReadAt>>;

/// Core has made one file.
pub(super) fn assembled(whole: &Checkpoint<Parts>) -> &Parts {
    whole.files()[0].safetensors().source()
}

#[derive(Debug)]
pub(crate) enum Origin {
    /// With unchanged pieces.
    File(Arc<Input<'static>>),
    /// Stored in another form, or unreadable.
    Piece { container: Container, data: Data, byte_len: u64 },
}

impl Origin {
    fn source(&self) -> &dyn ReadAt {
        match self {
            Self::File(input) => &*input.source,
            Self::Piece { container, .. } => &*container.input().source,
        }
    }
}

impl ReadAt for Origin {
    fn byte_len(&self) -> u64 {
        match self {
            Self::File(input) => input.source.byte_len(),
            Self::Piece { byte_len, .. } => *byte_len,
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(input) => input.source.read_exact_at(buf, offset),
            Self::Piece { container, data, .. } => data.read(container, buf, offset).map_err(to_io),
        }
    }

    fn inner(&self) -> Option<&dyn ReadAt> {
        match self {
            Self::File(input) => Some(&*input.source),
            Self::Piece { .. } => None,
        }
    }

    fn requests(&self) -> Option<Requests> {
        self.source().requests()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.source().check_unchanged()
    }

    fn may_change_unseen(&self) -> bool {
        self.source().may_change_unseen()
    }

    fn is_replaced(&self) -> io::Result<bool> {
        self.source().is_replaced()
    }
}
