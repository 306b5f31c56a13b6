//! [`Checkpoint::open_whole`]: also what ranks have saved opens, as whole tensors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::Index;
use super::opening::{
    check_whole, open_settled, open_shards_at, open_with_parts, or_parts, until_settled,
};
use super::siblings::Siblings;
use super::store::{FileKind, LocalStore, Store};
use super::{
    Assembled, Checkpoint, CheckpointFile, CheckpointPath, WholeTensor, dcp, divided, locate,
};
use crate::file::hash::remove_record;
use crate::file::io::{ReadAt, SafeTensors};
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::{Limits, Metadata};

/// The name that stands for all files of a directory.
const ALL: &str = "*.safetensors";

impl Checkpoint<Assembled> {
    /// [`open`](Checkpoint::open) that also opens what ranks have saved in parts, as whole tensors:
    ///
    /// - with [`RankSaver`](crate::ranks::RankSaver) or `safetensors convert --ranks`: the directory
    ///   or its index;
    /// - with PyTorch's `torch.distributed.checkpoint` and
    ///   `HuggingFaceStorageWriter(save_distributed=True)`, or with
    ///   [`ShardOptions::dcp`](crate::ShardOptions::dcp): the directory.
    ///
    /// Opening reads the headers of all files. A read of a tensor, or of a slice, takes the bytes
    /// it needs from each. So one process, or any number of ranks, can go on with it.
    ///
    /// `Checkpoint::open` refuses such files. Everything else opens in the same way as there.
    ///
    /// Where there is no index, all `*.safetensors` files of the directory must have parts, and be
    /// of one save. The parts may be boxes in any number of dimensions. Files of
    /// `ShardOptions::dcp` say how many they are. Those of PyTorch say neither that nor which shape
    /// a tensor has. It ends where the last part does: so **a missing last part of theirs is not
    /// noticed**, unless the caller compares the shapes, for example by
    /// [`RankPlan::check_tensors`](crate::ranks::RankPlan::check_tensors).
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let values = [1_u8, 2, 3, 4];
    /// // What two ranks write that hold a column each.
    /// for (rank, column) in [[1_u8, 3], [2, 4]].iter().enumerate() {
    ///     let info = format!(r#"{{"w": {{"saved_offsets": [0, {rank}]}}}}"#);
    ///     let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
    ///     let name = format!("shard-0000{}-model-00001-of-00001.safetensors", rank + 1);
    ///     let part = TensorView::from_slice(&[2, 1], column)?;
    ///     save(dir.path().join(name), [("w", part)], &options)?;
    /// }
    /// let checkpoint = Checkpoint::open_whole(dir.path())?;
    /// assert_eq!(checkpoint.tensor("w")?.read()?.as_slice::<u8>()?, values);
    /// assert!(Checkpoint::open(dir.path()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`open`](Checkpoint::open); [`RankProblem::BadParts`] for parts that overlap or
    /// leave a gap, for files that are missing or of two saves, for parts of one name that differ
    /// in their dtype or their number of dimensions, and for a malformed `DCP_SHARDING_INFO` or
    /// `safetensors_bridge.parts`; [`RankProblem::PartsOfTensors`] for the path of a file with parts.
    pub fn open_whole(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_whole_in(LocalStore, path, &Limits::default())
    }
}

impl<S: ReadAt> Checkpoint<Assembled<S>> {
    /// [`open_whole`](Checkpoint::open_whole) for files that do not lie on the local disk.
    ///
    /// # Errors
    ///
    /// The errors of [`open_whole`](Checkpoint::open_whole) and of the store.
    pub fn open_whole_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        let (store, path) = (Arc::new(store), path.as_ref());
        let siblings: Arc<dyn Siblings> = Arc::clone(&store) as _;
        let locate = || locate::locate(&*store, path);
        let open = |located: &CheckpointPath| {
            let Some((found, index)) = open_with_parts(&*store, located, limits)? else {
                return Ok(None);
            };
            // One file of several that have parts is not the checkpoint.
            let is_all = matches!(located, CheckpointPath::Index(_)) || located.path() != path;
            if is_all && found.files().iter().any(divided::has_parts) {
                return join(located.path(), found, index, limits).map(Some);
            }
            let stored = check_whole(&*store, located, found, limits)?;
            Ok(Some(stored.map_sources(Assembled::stored)))
        };
        let explain = |error| or_parts(&*store, path, error, limits);
        let opened = until_settled(path, || match open_settled(path, locate, open, explain) {
            Err(error) if is_of_parts(&error) && is_directory(&*store, path) => {
                let gathered = gather(&*store, path, limits)?;
                Ok(gathered.map(|gathered| gathered.of_directory(true)))
            }
            opened => opened.map(Some),
        })?;
        Ok(opened.beside(siblings, false))
    }

    /// Each file that tensors are read from as a checkpoint of its own, for what is about files:
    /// their [digests](crate::digest) and their [layout](Checkpoint::audit). Files with an index are
    /// one checkpoint. A tensor that is in parts has the shape of its part there. The headers are
    /// read again.
    ///
    /// # Errors
    ///
    /// The errors of [`from_source`](Checkpoint::from_source), but for parts.
    pub fn into_parts(self) -> Result<Vec<Checkpoint<S>>> {
        let (siblings, version) = (self.about.siblings, self.about.index_version);
        let mut parts = Vec::new();
        for CheckpointFile { path, archive } in self.catalog.into_parts().0 {
            let (sources, index) = archive.into_source().into_sources(path.clone());
            let open = |(path, source): (PathBuf, S)| {
                let archive = SafeTensors::from_source(source);
                let archive = archive.map_err(|error| error.in_path(&path))?;
                Ok(CheckpointFile { path, archive })
            };
            let files = sources.into_iter().map(open).collect::<Result<Vec<_>>>()?;
            match index {
                Some(index) => {
                    let version = version.clone();
                    parts.push(Checkpoint::from_shards(files, &index, &path, version)?);
                }
                None => parts.extend(files.into_iter().map(Checkpoint::of_file)),
            }
        }
        Ok(match siblings {
            Some(siblings) => {
                parts.into_iter().map(|part| part.beside(Arc::clone(&siblings), false)).collect()
            }
            None => parts,
        })
    }
}

/// Whether a directory did not open because its files have parts of tensors.
pub(super) fn is_of_parts(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::PartsOfTensors })
}

fn is_directory<T: Store>(store: &T, path: &Path) -> bool {
    matches!(store.kind(path), Ok(Some(FileKind::Directory)))
}

/// The whole tensors of all files of a directory, each of which must have parts. `None` if the
/// files were replaced meanwhile, so that they may not belong together.
fn gather<T: Store>(
    store: &T,
    directory: &Path,
    limits: &Limits,
) -> Result<Option<Checkpoint<Assembled<T::File>>>> {
    let names = locate::files_of(store, directory)?;
    let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
    let files = open_shards_at(store, &paths, limits);
    let mut has_changed = locate::files_of(store, directory)? != names;
    for file in files.iter().flatten() {
        let is_replaced = file.archive.source().is_replaced();
        has_changed |= is_replaced.map_err(|error| Error::io(error, &file.path))?;
    }
    if has_changed {
        return Ok(None);
    }
    let files = files?;
    if !files.iter().all(dcp::has_parts) {
        // Some are parts, and some are not: which ones are meant?
        let none = ErrorKind::NoCheckpoint { found: names, below: Vec::new() };
        return Err(Error::from(none).in_path(directory));
    }
    assemble(directory, files, limits).map(Some)
}

/// The whole tensors of these files, all of which have parts.
fn assemble<S: ReadAt>(
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
    of_one_file((directory.join(ALL), None), files, tensors, metadata, limits)
}

/// The whole tensors of a checkpoint, whose files have parts of them, and their index.
fn join<S: ReadAt>(
    path: &Path,
    parts: Checkpoint<S>,
    of_files: Option<Index>,
    limits: &Limits,
) -> Result<Checkpoint<Assembled<S>>> {
    let (tensors, metadata) = (divided::whole_tensors(&parts)?, parts.metadata().clone());
    let Checkpoint { catalog, about } = parts;
    let (files, _) = catalog.into_parts();
    let whole = of_one_file((path.into(), of_files), files, tensors, metadata, limits)?;
    Ok(Checkpoint { about, ..whole })
}

/// Tensors whose pieces lie in files, which may have an index, as a checkpoint of one file at a
/// path.
fn of_one_file<S: ReadAt>(
    (path, index): (PathBuf, Option<Index>),
    files: Vec<CheckpointFile<S>>,
    tensors: Vec<WholeTensor>,
    mut metadata: Metadata,
    limits: &Limits,
) -> Result<Checkpoint<Assembled<S>>> {
    divided::forget(&mut metadata);
    // Records of parts are none of whole tensors.
    remove_record(&mut metadata);
    let source = |file: CheckpointFile<S>| (file.path, file.archive.into_source());
    let sources = files.into_iter().map(source).collect();
    // The header of all files is longer than those of each, which have kept to the limits.
    let mut limits = limits.clone();
    (limits.header_bytes, limits.metadata_entries) = (u32::MAX.into(), usize::MAX);
    let source = Assembled::new(sources, tensors, &metadata).map(|it| it.with_index(index));
    let archive = source.and_then(|source| SafeTensors::from_source_with(source, &limits));
    let archive = archive.map_err(|error| error.in_path(&path))?;
    Checkpoint::from_single(CheckpointFile { path, archive })
}
