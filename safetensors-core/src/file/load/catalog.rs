//! [`Catalog`]: the tensors of several open files, by name and alias.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fmt, mem};

use crate::file::io::{ReadAt, SafeTensors};
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::header::{Header, Metadata, NameTable, TensorInfo, is_reserved};
use crate::weights::TensorFacts;

/// One file of a [`Checkpoint`](crate::Checkpoint).
#[derive(Clone, Debug)]
pub struct CheckpointFile<S> {
    pub(crate) path: PathBuf,
    pub(crate) archive: SafeTensors<S>,
}

impl<S: ReadAt> CheckpointFile<S> {
    pub(crate) fn read(path: PathBuf, source: S) -> Result<Self> {
        match SafeTensors::from_source(source) {
            Ok(archive) => Ok(Self { path, archive }),
            Err(error) => Err(error.in_path(&path)),
        }
    }
}

impl<S> CheckpointFile<S> {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's header and source.
    pub fn safetensors(&self) -> &SafeTensors<S> {
        &self.archive
    }

    /// Returns `true` for only rows of bytes, with an entry of metadata for each, as in a foreign
    /// index.
    #[doc(hidden)]
    pub fn looks_foreign(&self) -> bool {
        let header = self.archive.header();
        !header.is_empty()
            && header.iter().all(|info| {
                let is_row = info.dtype() == Dtype::U8 && info.shape().len() == 1;
                is_row && self.archive.metadata().contains_key(info.name())
            })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CatalogPlace {
    pub(crate) file: usize,
    pub(crate) position: usize,
}

/// Where a [`LazyTensor`](super::LazyTensor) finds its scales.
#[derive(Clone)]
pub(crate) struct Catalog<S> {
    files: Vec<CheckpointFile<S>>,
    pub(crate) table: CatalogTable,
}

#[derive(Clone, Default)]
pub(crate) struct CatalogTable {
    /// Sorted by file and position.
    pub(super) places: Vec<CatalogPlace>,
    /// `None` for a single file without an index: its header has them.
    names: Option<NameTable>,
    pub(super) aliases: BTreeMap<Arc<str>, CatalogPlace>,
    /// Sorted.
    aliases_by_place: Vec<(CatalogPlace, Arc<str>)>,
    /// `None` for a single file: its header has it.
    pub(crate) metadata: Option<Metadata>,
    /// `None` for a file that was already open.
    pub(crate) beside: Option<ReadBeside>,
    /// Whether no tensor is codes, by any settings.
    pub(crate) is_plain: bool,
    pub(super) has_codes: OnceLock<bool>,
    pub(super) facts: OnceLock<Arc<TensorFacts>>,
}

/// Reads a file next to a checkpoint, up to a limit of bytes.
pub(crate) type ReadBeside =
    Arc<dyn Fn(&str, u64) -> Result<Option<(PathBuf, Vec<u8>)>> + Send + Sync>;

impl<S: fmt::Debug> fmt::Debug for Catalog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog")
            .field("files", &self.files)
            .field("aliases", &self.table.aliases)
            .finish_non_exhaustive()
    }
}

impl CatalogTable {
    /// Takes the headers of the files, and sorted places.
    fn new(headers: &[&Header], places: Vec<CatalogPlace>, index: Option<&Metadata>) -> Self {
        let name_at = |i: usize| {
            let CatalogPlace { file, position } = places[i];
            headers
                .get(file)
                .and_then(|header| header.tensor_at(position))
                .map_or("", |it| it.name())
        };
        let names = (index.is_some() || headers.len() != 1).then(|| {
            let mut names = NameTable::default();
            names.reserve(places.len(), name_at);
            (0..places.len()).for_each(|i| _ = names.insert(name_at(i), i, name_at));
            names
        });
        let named = |name: &str| match &names {
            Some(names) => names.find(name, name_at),
            None => headers[0].position(name),
        };
        let mut aliases: BTreeMap<Arc<str>, CatalogPlace> = BTreeMap::new();
        for (key, value) in headers.iter().map(|header| header.metadata()).chain(index).flatten() {
            if let Some(kept) = alias_of(key, value, named) {
                aliases.entry(key.as_str().into()).or_insert(places[kept]);
            }
        }
        let by_place = aliases.iter().map(|(name, &place)| (place, Arc::clone(name)));
        let mut aliases_by_place: Vec<_> = by_place.collect();
        aliases_by_place.sort_unstable();
        Self { places, names, aliases, aliases_by_place, ..Self::default() }
    }
}

impl<S> Catalog<S> {
    /// Takes sorted places. A single file without `index`, an index's metadata, has all of its
    /// tensors here.
    pub(crate) fn new(
        files: Vec<CheckpointFile<S>>,
        places: Vec<CatalogPlace>,
        index: Option<&Metadata>,
    ) -> Self {
        let headers: Vec<_> = files.iter().map(|file| file.archive.header()).collect();
        let table = CatalogTable::new(&headers, places, index);
        Self { files, table }
    }

    /// Changes to another type with the same bytes.
    pub(crate) fn map_sources<T, E>(
        self,
        change: impl Fn(S) -> Result<T, E>,
    ) -> Result<Catalog<T>, E> {
        let mut files = Vec::with_capacity(self.files.len());
        for CheckpointFile { path, archive } in self.files {
            files.push(CheckpointFile { path, archive: archive.map_source(&change)? });
        }
        Ok(Catalog { files, table: self.table })
    }

    pub(crate) fn by_ref(&self) -> Catalog<&dyn ReadAt>
    where
        S: ReadAt,
    {
        let mut files = Vec::with_capacity(self.files.len());
        for CheckpointFile { path, archive } in &self.files {
            let source: &dyn ReadAt = archive.source();
            let archive = SafeTensors::from_parts(archive.header().clone(), source);
            files.push(CheckpointFile { path: path.clone(), archive });
        }
        Catalog { files, table: self.table.clone() }
    }

    /// Returns the metadata of all files and of the index.
    pub(crate) fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        let of_file = || self.files.first().map(|file| file.archive.metadata());
        self.table.metadata.as_ref().or_else(of_file).unwrap_or(&NONE)
    }

    pub(crate) fn read_beside(&self, name: &str, most: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
        self.table.beside.as_ref().map_or(Ok(None), |read| read(name, most))
    }

    pub(crate) fn take_files(&mut self) -> (Vec<CheckpointFile<S>>, Vec<CatalogPlace>) {
        (mem::take(&mut self.files), mem::take(&mut self.table.places))
    }

    pub(crate) fn with_files<T>(
        self,
        files: Vec<CheckpointFile<T>>,
        places: Vec<CatalogPlace>,
        metadata: Metadata,
    ) -> Catalog<T> {
        let metadata = (!self.is_single_file()).then_some(metadata);
        let mut catalog = Catalog::new(files, places, metadata.as_ref());
        catalog.table.metadata = metadata;
        catalog.table.beside = self.table.beside;
        catalog.table.is_plain = self.table.is_plain;
        catalog
    }

    pub(crate) fn files(&self) -> &[CheckpointFile<S>] {
        &self.files
    }

    pub(crate) fn is_single_file(&self) -> bool {
        self.table.names.is_none()
    }

    pub(crate) fn places(&self) -> &[CatalogPlace] {
        &self.table.places
    }

    /// Returns sorted aliases.
    pub(crate) fn aliases_of(&self, name: &str) -> impl Iterator<Item = &str> {
        let place = self.named(name).map(|position| self.table.places[position]);
        let aliases = place.map_or(&[][..], |place| {
            let start = self.table.aliases_by_place.partition_point(|(other, _)| *other < place);
            let rest = &self.table.aliases_by_place[start..];
            &rest[..rest.partition_point(|(other, _)| *other == place)]
        });
        aliases.iter().map(|(_, name)| &**name)
    }

    /// Finds aliases, too.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.named(name).or_else(|| {
            let &place = self.table.aliases.get(name)?;
            self.table.places.binary_search(&place).ok()
        })
    }

    /// Finds the name in its file.
    fn named(&self, name: &str) -> Option<usize> {
        match &self.table.names {
            Some(table) => table.find(name, |i| self.name_at(i)),
            None => self.files.first()?.archive.header().position(name),
        }
    }

    fn name_at(&self, i: usize) -> &str {
        self.info(self.table.places[i]).map_or("", |(_, info)| info.name())
    }

    pub(super) fn info(&self, place: CatalogPlace) -> Option<(&CheckpointFile<S>, TensorInfo<'_>)> {
        let file = self.files.get(place.file)?;
        Some((file, file.archive.header().tensor_at(place.position)?))
    }
}

/// Returns the tensor, found by `named`, that an entry makes `key` an alias of.
// Metadata can hold any text: the value must name a tensor, and the key neither name one nor be
// reserved.
pub(crate) fn alias_of<T>(key: &str, value: &str, named: impl Fn(&str) -> Option<T>) -> Option<T> {
    if is_reserved(key) || named(key).is_some() {
        return None;
    }
    named(value)
}
