//! Joins tensors that are in parts in several files.

pub(super) mod assembled;
pub(super) mod dcp;
pub(super) mod divided;
pub(super) mod whole_tensor;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::index::Index;
use crate::checkpoint::{Assembled, Checkpoint, CheckpointFile, WholeTensor};
use crate::file::hash::remove_record;
use crate::file::io::{ReadAt, SafeTensors};
use crate::format::error::{Error, RankProblem, Result};
use crate::format::header::{Limits, Metadata};

/// The name of all files of a directory together.
const ALL: &str = "*.safetensors";

impl<S: ReadAt> Checkpoint<Assembled<S>> {
    /// Returns the checkpoint with its stored files as sources, so that files in memory can be lent
    /// as [views](crate::LazyTensor::view).
    ///
    /// ```
    /// use safetensors_core::checkpoint::store::MemoryStore;
    /// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
    ///
    /// let weight = TensorView::from_slice(&[2], &[1_u8, 2])?;
    /// let file = serialize([("weight", weight)], &SaveOptions::new())?;
    /// let store = MemoryStore::from_iter([("model.safetensors", file)]);
    /// let checkpoint = Checkpoint::open_in(store, "", &Limits::default())?.into_stored()?;
    /// assert_eq!(checkpoint.tensor("weight")?.view()?.data(), [1, 2]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RankProblem::PartsOfTensors`] if tensors are made of parts, which are not together in
    /// memory.
    pub fn into_stored(self) -> Result<Checkpoint<S>> {
        if let Some(file) = self.files().iter().find(|file| !file.archive.source().is_stored()) {
            return Err(Error::from(RankProblem::PartsOfTensors).in_path(&file.path));
        }
        self.try_map_sources(|source| {
            source.into_stored().ok_or(RankProblem::PartsOfTensors.into())
        })
    }

    /// Returns each stored file as its own checkpoint, for work on files: their
    /// [digests](crate::digest) and their [layout](Checkpoint::audit). Files with an index are one
    /// checkpoint. A tensor in parts has the shape of its part there. The headers are read again.
    ///
    /// # Errors
    ///
    /// As for [`from_source`](Checkpoint::from_source), except that parts are allowed.
    pub fn into_parts(mut self) -> Result<Vec<Checkpoint<S>>> {
        let siblings = self.about.siblings;
        let version = self.about.index_version;
        let mut parts = Vec::new();
        for CheckpointFile { path, archive } in self.catalog.take_files().0 {
            let (sources, index) = archive.into_source().into_sources(path.clone());
            let mut files = Vec::with_capacity(sources.len());
            for (path, source) in sources {
                files.push(CheckpointFile::read(path, source)?);
            }
            match index {
                Some(index) => {
                    let version = version.clone();
                    parts.push(Checkpoint::from_shards(files, &index, &path, version)?);
                }
                None => parts.extend(files.into_iter().map(Checkpoint::of_file)),
            }
        }
        Ok(match siblings {
            Some(siblings) => parts
                .into_iter()
                .map(|part| part.with_siblings(Arc::clone(&siblings), false))
                .collect(),
            None => parts,
        })
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Wraps the sources in a type that could also assemble tensors.
    pub(crate) fn into_assembled(self) -> Checkpoint<Assembled<S>> {
        self.map_sources(Assembled::stored)
    }
}

/// Joins the tensors of files of PyTorch (DCP). Every file must have parts.
pub(crate) fn join_dcp<S: ReadAt>(
    directory: &Path,
    files: Vec<CheckpointFile<S>>,
    limits: &Limits,
) -> Result<Checkpoint<Assembled<S>>> {
    dcp::check_complete(&files)?;
    let tensors = dcp::whole_tensors(&files)?;
    let mut metadata = Metadata::new();
    for (key, value) in files.iter().flat_map(|file| file.archive.metadata()) {
        metadata.entry(key.clone()).or_insert_with(|| value.clone());
    }
    assemble(directory.join(ALL), Stored { files, index: None }, tensors, metadata, limits)
}

/// Joins the tensors of a checkpoint of our own ranks that has parts of them, and its index.
pub(crate) fn join<S: ReadAt>(
    path: &Path,
    parts: Checkpoint<S>,
    index: Option<Index>,
    limits: &Limits,
) -> Result<Checkpoint<Assembled<S>>> {
    let tensors = divided::whole_tensors(&parts)?;
    let metadata = parts.metadata().clone();
    let Checkpoint { mut catalog, mut about } = parts;
    let (files, _) = catalog.take_files();
    let whole = assemble(path.into(), Stored { files, index }, tensors, metadata, limits)?;
    about.is_joined = true;
    Ok(Checkpoint { about, ..whole })
}

/// Files with pieces of tensors, and their index.
struct Stored<S> {
    files: Vec<CheckpointFile<S>>,
    index: Option<Index>,
}

/// Makes a checkpoint of a single file at a path, from tensors with pieces in files.
fn assemble<S: ReadAt>(
    path: PathBuf,
    stored: Stored<S>,
    tensors: Vec<WholeTensor>,
    mut metadata: Metadata,
    limits: &Limits,
) -> Result<Checkpoint<Assembled<S>>> {
    divided::forget(&mut metadata);
    // Records of parts are none of whole tensors.
    remove_record(&mut metadata);
    let source = |file: CheckpointFile<S>| (file.path, file.archive.into_source());
    let sources = stored.files.into_iter().map(source).collect();
    let archive = Assembled::new(sources, tensors, &metadata).and_then(|source| {
        SafeTensors::from_source_with(source.with_index(stored.index), &limits.of_all_files())
    });
    let archive = archive.map_err(|error| error.in_path(&path))?;
    let mut joined = Checkpoint::from_single(CheckpointFile { path, archive })?;
    joined.about.is_joined = true;
    Ok(joined)
}
