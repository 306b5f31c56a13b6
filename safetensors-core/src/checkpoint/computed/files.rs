//! Making the files of a checkpoint in which computed tensors replace others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::tensor::ComputedTensor;
use super::{Computed, Content, Segment, Shared};
use crate::checkpoint::{CatalogPlace, Checkpoint, CheckpointFile};
use crate::file::hash::remove_record;
use crate::file::io::{ReadAt, SafeTensors};
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::header::{HeaderEntry, Limits, Metadata, encode};
use crate::format::tensor::shape::byte_len;

/// The tensors that replace others of a checkpoint.
pub(crate) struct Replacement<'a> {
    pub(crate) tensors: Vec<Box<dyn ComputedTensor>>,
    /// By the names of stored tensors, the number of the computed one that replaces it; `None` for
    /// a tensor that is removed.
    pub(crate) instead: HashMap<&'a str, Option<usize>>,
    /// The numbers of computed tensors that are new. They come last in the last file.
    pub(crate) added: Vec<usize>,
    /// Other checkpoints that are read.
    pub(crate) others: Vec<Arc<Checkpoint<Box<dyn ReadAt>>>>,
    /// Removes entries of the metadata.
    pub(crate) metadata: &'a dyn Fn(&Metadata) -> Metadata,
}

impl<S: ReadAt> Checkpoint<S> {
    /// Replaces tensors of the checkpoint by computed ones.
    pub(crate) fn computed(self, replacement: Replacement<'_>) -> Result<Checkpoint<Computed<S>>> {
        let Replacement { tensors, instead, added, others, metadata } = replacement;
        let mut catalog = self.catalog;
        let metadata_of_all = metadata(catalog.metadata());
        let (files, places) = catalog.take_files();
        let shared = Arc::new(Shared { files, tensors, others });
        let mut new_files = Vec::with_capacity(shared.files.len());
        let mut new_places = Vec::with_capacity(places.len());
        // They are sorted.
        let mut places = places.into_iter().peekable();
        for file in 0..shared.files.len() {
            let is_last = file + 1 == shared.files.len();
            let added = if is_last { &added[..] } else { &[] };
            let mut kept = Vec::new();
            while let Some(place) = places.next_if(|place| place.file == file) {
                kept.push(place.position);
            }
            let maker = FileMaker { shared: &shared, file, instead: &instead, added, metadata };
            let made = maker.make(&kept)?;
            // A file as it is stored may have tensors that are not in the index.
            if !made.archive.source().is_stored() {
                kept = (0..made.archive.header().len()).collect();
            }
            let place = |position| CatalogPlace { file, position };
            new_places.extend(kept.into_iter().map(place));
            new_files.push(made);
        }
        let catalog = catalog.with_files(new_files, new_places, metadata_of_all);
        Ok(Checkpoint { catalog, about: self.about })
    }
}

/// Makes one file.
struct FileMaker<'a, S> {
    shared: &'a Arc<Shared<S>>,
    /// The number of the file.
    file: usize,
    instead: &'a HashMap<&'a str, Option<usize>>,
    /// The numbers of the tensors that are new in the file.
    added: &'a [usize],
    metadata: &'a dyn Fn(&Metadata) -> Metadata,
}

impl<S: ReadAt> FileMaker<'_, S> {
    /// Makes the file. The tensors at these positions belong to the checkpoint.
    fn make(&self, positions: &[usize]) -> Result<CheckpointFile<Computed<S>>> {
        let CheckpointFile { path, archive } = &self.shared.files[self.file];
        let header = archive.header();
        let infos = || positions.iter().filter_map(|&position| header.tensor_at(position));
        let is_changed = infos().any(|info| self.instead.contains_key(info.name()));
        if !is_changed && self.added.is_empty() {
            let archive = SafeTensors::from_parts(header.clone(), self.stored());
            return Ok(CheckpointFile { path: path.clone(), archive });
        }
        let mut content = FileContent::default();
        for info in infos() {
            match self.instead.get(info.name()) {
                Some(&Some(number)) => self.compute(number, &mut content)?,
                Some(None) => {}
                None => {
                    let offset = header.data_start() + info.data_offsets().start;
                    let copied = Content::Copied(offset);
                    content.add(info.name(), info.dtype(), info.shape(), copied)?;
                }
            }
        }
        for &number in self.added {
            self.compute(number, &mut content)?;
        }
        let mut metadata = (self.metadata)(archive.metadata());
        // Digests of stored tensors do not match computed ones.
        remove_record(&mut metadata);
        let source = self.source(content, &metadata);
        let archive = SafeTensors::from_source_with(source, &Limits::default().of_all_files());
        let archive = archive.map_err(|error| error.in_path(path))?;
        Ok(CheckpointFile { path: path.clone(), archive })
    }

    /// Adds a computed tensor.
    fn compute<'t>(&'t self, number: usize, content: &mut FileContent<'t>) -> Result<()> {
        let tensor = &self.shared.tensors[number];
        content.used.extend(tensor.files());
        content.add(tensor.name(), tensor.dtype(), tensor.shape(), Content::Computed(number))
    }

    /// Returns the file as it is stored.
    fn stored(&self) -> Computed<S> {
        let len = self.shared.files[self.file].archive.source().byte_len();
        Computed {
            shared: Arc::clone(self.shared),
            file: self.file,
            header: Vec::new(),
            segments: vec![Segment { start: 0, len, content: Content::Copied(0) }],
            byte_len: len,
            used: BTreeSet::from([self.file]),
        }
    }

    fn source(&self, content: FileContent<'_>, metadata: &Metadata) -> Computed<S> {
        let FileContent { entries, mut segments, end, mut used } = content;
        let header = encode(metadata, entries.into_iter(), 8);
        let start = header.len() as u64;
        segments.retain(|segment| segment.len > 0);
        segments.iter_mut().for_each(|segment| segment.start += start);
        used.insert(self.file);
        Computed {
            shared: Arc::clone(self.shared),
            file: self.file,
            header,
            segments,
            byte_len: start + end,
            used,
        }
    }
}

/// The tensors of a file.
#[derive(Default)]
struct FileContent<'a> {
    entries: Vec<HeaderEntry<'a>>,
    /// Counted from the end of the header.
    segments: Vec<Segment>,
    end: u64,
    /// The files that are read.
    used: BTreeSet<usize>,
}

impl<'a> FileContent<'a> {
    fn add(
        &mut self,
        name: &'a str,
        dtype: Dtype,
        shape: &'a [usize],
        content: Content,
    ) -> Result<()> {
        let len = byte_len(dtype, shape)?;
        let data_offsets = self.end..self.end + len;
        self.segments.push(Segment { start: self.end, len, content });
        self.end = data_offsets.end;
        self.entries.push(HeaderEntry { name, dtype, shape, data_offsets });
        Ok(())
    }
}
