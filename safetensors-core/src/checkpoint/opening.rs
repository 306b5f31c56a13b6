//! Opening the files of a checkpoint that others may replace meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::index::Index;
use super::siblings::Siblings;
use super::store::{Store, Version};
use super::{Checkpoint, CheckpointFile, CheckpointPath, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::header::Limits;
use crate::io::{ReadAt, SafeTensors};
use crate::parallel::in_parallel;

/// The most shards that are opened at once. What is waited for is mostly the disk or the network,
/// not a core.
const OPENED_AT_ONCE: usize = 8;

/// How often a checkpoint is opened anew because it has changed meanwhile. A save changes it a few
/// times within milliseconds, so this is only reached if one save follows another without a break.
const ATTEMPTS: u32 = 50;

/// How long to wait before the last of these attempts; the first follow at once.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Opens what `locate` finds at a path, as often as it takes to get files that belong together.
///
/// An index that is the same before and after its shards are opened has had these shards all the
/// time: whoever replaces a checkpoint puts another index in place before a file changes that the
/// index names, as [`save_sharded`](crate::save_sharded) does.
pub(super) fn open_from<T: Store>(
    store: &T,
    siblings: Arc<dyn Siblings>,
    path: &Path,
    limits: &Limits,
    locate: impl Fn() -> Result<CheckpointPath>,
) -> Result<Checkpoint<T::File>> {
    for attempt in 0..ATTEMPTS {
        let error = match locate() {
            Ok(located) => match open_located(store, &located, limits) {
                Ok(Some(mut checkpoint)) => {
                    checkpoint.siblings = Some(siblings);
                    checkpoint.is_of_directory = located.path() != path;
                    return Ok(checkpoint);
                }
                Ok(None) => None,
                Err(error) => (!has_moved(&located, locate())).then_some(error),
            },
            // A directory may be read while what it has is replaced.
            Err(error) => locate().is_err().then_some(error),
        };
        if let Some(error) = error {
            return Err(error);
        }
        thread::sleep(LONGEST_PAUSE * attempt / ATTEMPTS);
    }
    Err(Error::from(ErrorKind::KeepsChanging { attempts: ATTEMPTS }).in_path(path))
}

/// Whether a path leads elsewhere by now.
fn has_moved(before: &CheckpointPath, now: Result<CheckpointPath>) -> bool {
    now.is_ok_and(|now| now != *before)
}

/// Opens one file, or an index and its shards; `None` if the index became another one meanwhile.
fn open_located<T: Store>(
    store: &T,
    located: &CheckpointPath,
    limits: &Limits,
) -> Result<Option<Checkpoint<T::File>>> {
    let path = match located {
        CheckpointPath::File(file) => {
            return Ok(Some(Checkpoint::from_single(open_shard(store, file, limits)?)));
        }
        CheckpointPath::Index(path) => path,
    };
    let version = || store.version(path).map_err(|error| error.in_path(path));
    let before = version()?;
    let opened = open_shards(store, path, limits);
    // An error may also come from a shard that went with its index.
    if version()? != before {
        return Ok(None);
    }
    let (index, shards) = opened?;
    Checkpoint::from_shards(shards, &index, path, before).map(Some)
}

fn open_shards<T: Store>(
    store: &T,
    path: &Path,
    limits: &Limits,
) -> Result<(Index, Vec<CheckpointFile<T::File>>)> {
    let index = Index::read(store, path, limits)?;
    let files: Vec<_> = index.files_beside(path).into_iter().zip(index.shards()).collect();
    let shards = in_parallel(files, OPENED_AT_ONCE, |(file, (_, names)), _: &mut ()| {
        open_shard(store, &file, limits).map_err(|error| name_lost(error, names))
    })?;
    Ok((index, shards))
}

fn open_shard<T: Store>(
    store: &T,
    path: &Path,
    limits: &Limits,
) -> Result<CheckpointFile<T::File>> {
    let archive = store.open(path).and_then(|source| SafeTensors::from_source_with(source, limits));
    let archive = archive.map_err(|error| error.in_path(path))?;
    Ok(CheckpointFile { path: path.into(), archive })
}

/// Opens several files, none of which has a tensor of another, as one checkpoint. The paths are
/// sorted.
pub(super) fn open_each<T: Store>(
    store: &T,
    paths: &[PathBuf],
    limits: &Limits,
) -> Result<Checkpoint<T::File>> {
    let open = |path: &PathBuf, _: &mut ()| open_shard(store, path, limits);
    let shards = in_parallel(paths, OPENED_AT_ONCE, open)?;
    let mut places = Vec::new();
    let mut owners = HashMap::new();
    for (shard, file) in shards.iter().enumerate() {
        for (position, info) in file.archive.header().iter().enumerate() {
            if let Some(other) = owners.insert(info.name(), shard) {
                let other = shards[other].path.display().to_string();
                let error = Error::from(ErrorKind::InTwoFiles { other });
                return Err(error.in_tensor(info.name()).in_path(&file.path));
            }
            places.push(Place { shard, position });
        }
    }
    drop(owners);
    Ok(Checkpoint::assemble(shards, places, None))
}

impl<S: ReadAt> Checkpoint<S> {
    /// A checkpoint of one file.
    pub(super) fn from_single(shard: CheckpointFile<S>) -> Self {
        let places = (0..shard.archive.header().len())
            .map(|position| Place { shard: 0, position })
            .collect();
        Self::assemble(vec![shard], places, None)
    }

    /// Only the tensors that the map sends to a shard are the checkpoint's: where two shards have
    /// one, the map decides.
    fn from_shards(
        shards: Vec<CheckpointFile<S>>,
        index: &Index,
        path: &Path,
        version: Option<Version>,
    ) -> Result<Self> {
        let mut places = Vec::new();
        for (shard, (file, names)) in index.shards().enumerate() {
            let header = shards[shard].archive.header();
            let start = places.len();
            for name in names {
                let Some(position) = header.position(name) else {
                    let error = Error::from(ErrorKind::NotInShard { shard: file.to_owned() });
                    return Err(error.in_tensor(name).in_path(path));
                };
                places.push(Place { shard, position });
            }
            places[start..].sort_unstable_by_key(|place| place.position);
        }
        let mut checkpoint = Self::assemble(shards, places, Some((index, path.into())));
        checkpoint.index_version = version;
        Ok(checkpoint)
    }
}

/// Says in the error of a shard that is missing or cut off which tensor that loses: the first that
/// the map sends there.
///
/// Other errors are about the shard's own text, not about what the map says of it.
fn name_lost(error: Error, names: &[String]) -> Error {
    let lost = matches!(
        error.kind(),
        ErrorKind::Io(_)
            | ErrorKind::NotAFile { .. }
            | ErrorKind::TooShort { .. }
            | ErrorKind::HeaderPastEnd { .. }
    );
    match names.first() {
        Some(name) if lost => error.in_tensor(name),
        _ => error,
    }
}
