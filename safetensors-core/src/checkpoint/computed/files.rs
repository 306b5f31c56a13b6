//! Making the files of a checkpoint in which computed tensors replace others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread;

use super::{Computed, Content, NewTensor, Shared};
use crate::checkpoint::segments::Segments;
use crate::checkpoint::{CatalogPlace, Checkpoint, CheckpointFile};
use crate::file::hash::remove_record;
use crate::file::io::{ReadAt, Requests, SafeTensors};
use crate::file::save::spec::Spec;
use crate::format::error::Result;
use crate::format::header::{Limits, Metadata};

/// The bytes of a read of transposed tensors.
const TURNED: usize = 8 << 20;

/// The tensors that replace others of a checkpoint.
pub(crate) struct Replacement<'a> {
    pub(crate) tensors: Vec<NewTensor>,
    /// By the names of stored tensors, the numbers of the ones that replace it; none for a tensor
    /// that is removed.
    pub(crate) instead: HashMap<&'a str, Vec<usize>>,
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
    instead: &'a HashMap<&'a str, Vec<usize>>,
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
        let mut tensors = Vec::new();
        for info in infos() {
            match self.instead.get(info.name()) {
                Some(instead) => {
                    tensors.extend(instead.iter().map(|&number| self.computed(number)));
                }
                None => {
                    let offset = header.data_start() + info.data_offsets().start;
                    let spec = Spec { name: info.name(), dtype: info.dtype(), shape: info.shape() };
                    tensors.push((spec, Content::Copied(offset)));
                }
            }
        }
        tensors.extend(self.added.iter().map(|&number| self.computed(number)));
        let mut metadata = (self.metadata)(archive.metadata());
        // Digests of stored tensors do not match computed ones.
        remove_record(&mut metadata);
        let mut used = BTreeSet::from([self.file]);
        let mut is_turned = false;
        for (_, content) in &tensors {
            if let Content::Computed(number) = *content {
                used.extend(self.shared.tensors[number].files());
                is_turned |= self.shared.tensors[number].is_turned();
            }
        }
        let threads = || thread::available_parallelism().map_or(1, usize::from);
        let turned = is_turned.then(|| Requests::new(TURNED, threads()));
        let source = Computed { turned, ..self.source(Segments::new(tensors, &metadata)?, used) };
        let archive = SafeTensors::from_source_with(source, &Limits::default().of_all_files());
        let archive = archive.map_err(|error| error.in_path(path))?;
        Ok(CheckpointFile { path: path.clone(), archive })
    }

    fn computed(&self, number: usize) -> (Spec<'_>, Content) {
        (self.shared.tensors[number].spec(), Content::Computed(number))
    }

    /// Returns the file as it is stored.
    fn stored(&self) -> Computed<S> {
        let len = self.shared.files[self.file].archive.source().byte_len();
        self.source(Segments::stored(Content::Copied(0), len), BTreeSet::from([self.file]))
    }

    fn source(&self, segments: Segments<Content>, used: BTreeSet<usize>) -> Computed<S> {
        Computed { shared: Arc::clone(self.shared), file: self.file, segments, used, turned: None }
    }
}
