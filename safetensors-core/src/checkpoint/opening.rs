//! Opening the files of a checkpoint while others may replace it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::index::Index;
use super::locate::files_of;
use super::siblings::Siblings;
use super::store::{FileKind, Store, Version, is_not_fetched};
use super::{
    CatalogPlace, Checkpoint, CheckpointFile, CheckpointPath, STANDARD_INDEX, dcp, divided,
};
use crate::file::io::reserve::reserve_open_files;
use crate::file::io::stamp::says_changed;
use crate::file::io::{ReadAt, SafeTensors};
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::Limits;
use crate::format::parallel::in_parallel;
use crate::format::trace::Span;

/// The most shards that are opened at once. The threads mostly wait for the disk or the network, so
/// the number of cores does not matter.
const OPENED_AT_ONCE: usize = 8;

/// The most attempts to open a checkpoint that changes meanwhile. One save changes it a few times
/// within milliseconds, so the last attempt is reached only if save follows save without a pause.
pub(super) const ATTEMPTS: u32 = 50;

/// The pauses between attempts grow from zero to just below this.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Opens what `locate` finds at a path, and tries again until the files belong together.
///
/// If the index is the same before and after its shards are opened, these shards belong to it. That
/// relies on writers, such as [`save_sharded`](crate::save_sharded), which replace the index before
/// they change any file that it names.
pub(super) fn open_from<T: Store>(
    store: &T,
    siblings: Arc<dyn Siblings>,
    path: &Path,
    limits: &Limits,
    locate: impl Fn() -> Result<CheckpointPath>,
) -> Result<Checkpoint<T::File>> {
    let open = |located: &CheckpointPath| open_located(store, located, limits);
    let opened = open_settled(path, locate, open, |error| or_parts(store, path, error, limits))?;
    Ok(opened.beside(siblings, false))
}

/// [`open_from`] with the function that opens what was located, and what an error of locating
/// means.
pub(super) fn open_settled<S>(
    path: &Path,
    locate: impl Fn() -> Result<CheckpointPath>,
    open: impl Fn(&CheckpointPath) -> Result<Option<Checkpoint<S>>>,
    explain: impl Fn(Error) -> Error,
) -> Result<Checkpoint<S>> {
    until_settled(path, || match locate() {
        Ok(located) => match open(&located) {
            Ok(Some(checkpoint)) => {
                let is_of_directory = located.path() != path;
                Ok(Some(checkpoint.of_directory(is_of_directory)))
            }
            Err(error) if !has_moved(&located, locate()) => Err(error),
            Ok(None) | Err(_) => Ok(None),
        },
        // If a second look succeeds, the directory was listed while its files were replaced.
        Err(_) if locate().is_ok() => Ok(None),
        Err(error) => Err(explain(error)),
    })
}

/// Opens what is at a path, and tries again while that is `None`, because its files change.
pub(super) fn until_settled<C>(path: &Path, open: impl Fn() -> Result<Option<C>>) -> Result<C> {
    for attempt in 0..ATTEMPTS {
        if let Some(opened) = open()? {
            return Ok(opened);
        }
        // A browser cannot wait.
        if cfg!(not(all(target_family = "wasm", target_os = "unknown"))) {
            thread::sleep(LONGEST_PAUSE * attempt / ATTEMPTS);
        }
    }
    Err(Error::from(ErrorKind::KeepsChanging { attempts: ATTEMPTS }).in_path(path))
}

/// The error of a directory without a checkpoint, or that its files have parts of tensors. The
/// first file that opens decides; of the others, whoever opens all of them finds what is wrong.
pub(super) fn or_parts<T: Store>(store: &T, path: &Path, error: Error, limits: &Limits) -> Error {
    let ErrorKind::NoCheckpoint { found, .. } = error.kind() else { return error };
    let is_file =
        |name: &String| matches!(CheckpointPath::from_name(name), Some(CheckpointPath::File(_)));
    if !found.iter().all(is_file) {
        return error;
    }
    let mut opened = found.iter().map(|name| open_shard(store, &path.join(name), limits));
    match opened.find_map(Result::ok) {
        Some(file) if dcp::has_parts(&file) => {
            Error::from(RankProblem::PartsOfTensors).in_path(path)
        }
        _ => error,
    }
}

/// Whether the path means another file or index by now.
fn has_moved(before: &CheckpointPath, now: Result<CheckpointPath>) -> bool {
    now.is_ok_and(|now| now != *before)
}

/// Opens one file, or an index and its shards. `None` if the index changed meanwhile.
fn open_located<T: Store>(
    store: &T,
    located: &CheckpointPath,
    limits: &Limits,
) -> Result<Option<Checkpoint<T::File>>> {
    let opened = open_with_parts(store, located, limits)?;
    opened.map(|(checkpoint, _)| check_whole(store, located, checkpoint, limits)).transpose()
}

/// The same checkpoint. Fails if its tensors are not whole: if they are parts, or those of a delta.
pub(super) fn check_whole<T: Store>(
    store: &T,
    located: &CheckpointPath,
    checkpoint: Checkpoint<T::File>,
    limits: &Limits,
) -> Result<Checkpoint<T::File>> {
    let files = checkpoint.files();
    match (located, files) {
        (CheckpointPath::File(_), [file]) => {
            refuse_delta(store, file, limits)?;
            refuse_parts(file)?;
        }
        _ if files.iter().any(divided::has_parts) => {
            return Err(Error::from(RankProblem::PartsOfTensors).in_path(located.path()));
        }
        _ => {}
    }
    Ok(checkpoint)
}

/// A checkpoint, and its index if it has one.
type WithIndex<S> = (Checkpoint<S>, Option<Index>);

/// The same of files that may have parts of tensors, as tensors.
pub(super) fn open_with_parts<T: Store>(
    store: &T,
    located: &CheckpointPath,
    limits: &Limits,
) -> Result<Option<WithIndex<T::File>>> {
    let path = match located {
        CheckpointPath::File(file) => {
            let file = open_shard(store, file, limits)?;
            return Ok(Some((Checkpoint::of_file(file), None)));
        }
        CheckpointPath::Index(path) => path,
    };
    let read = || Index::read(store, path, limits);
    let Some(Indexed { index, shards, version }) = open_indexed(store, path, limits, read)? else {
        return Ok(None);
    };
    if let Some(file) = shards.iter().find(|file| dcp::has_parts(file)) {
        refuse_indexed(store, path, (file, &shards), limits)?;
    }
    let checkpoint = Checkpoint::from_shards(shards, &index, path, version)?;
    Ok(Some((checkpoint, Some(index))))
}

/// An index and its shards, which belong together.
pub(super) struct Indexed<S> {
    pub(super) index: Index,
    pub(super) shards: Vec<CheckpointFile<S>>,
    /// The version of the index.
    pub(super) version: Option<Version>,
}

/// Opens the shards of the index that `read` reads at a path. `None` if the index changed
/// meanwhile.
pub(super) fn open_indexed<T: Store>(
    store: &T,
    path: &Path,
    limits: &Limits,
    read: impl FnOnce() -> Result<Index>,
) -> Result<Option<Indexed<T::File>>> {
    let version = || store.version(path).map_err(|error| error.in_path(path));
    let before = version()?;
    let opened = read().and_then(|index| Ok((open_shards(store, path, &index, limits)?, index)));
    // This comes before the error is looked at: a shard may be missing because its index was
    // replaced.
    if version()? != before {
        return Ok(None);
    }
    let (shards, index) = opened?;
    Ok(Some(Indexed { index, shards, version: before }))
}

/// Fails if an index may name a part of a tensor, beside which there are others.
///
/// PyTorch writes `DCP_SHARDING_INFO` and an index if it saves whole tensors. Then each begins at
/// its first element, and all files are those of the index.
fn refuse_indexed<T: Store>(
    store: &T,
    index: &Path,
    (file, shards): (&CheckpointFile<T::File>, &[CheckpointFile<T::File>]),
    limits: &Limits,
) -> Result<()> {
    shards.iter().try_for_each(dcp::refuse_indexed)?;
    let directory = index.parent().unwrap_or(Path::new(""));
    // Every other store finds the index there.
    if store.list(directory).map_err(|error| error.in_path(directory))?.is_empty() {
        return if dcp::are_whole(shards) { Ok(()) } else { Err(dcp::not_listed(file)) };
    }
    let has_parts = |name: &String| {
        let path = directory.join(name);
        shards.iter().all(|shard| shard.path != path)
            && open_shard(store, &path, limits).is_ok_and(|file| dcp::has_parts(&file))
    };
    match files_of(store, directory)?.iter().find(|name| has_parts(name)) {
        Some(other) => Err(dcp::beside_index(file, other)),
        None => Ok(()),
    }
}

fn open_shards<T: Store>(
    store: &T,
    path: &Path,
    index: &Index,
    limits: &Limits,
) -> Result<Vec<CheckpointFile<T::File>>> {
    let files: Vec<_> = index.files_beside(path).into_iter().zip(index.shards()).collect();
    open_at_once(files, |(file, (_, names))| {
        open_shard(store, &file, limits).map_err(|error| name_lost(error, names))
    })
}

/// Opens several files at once. What has not been fetched yet keeps none of the others from being
/// opened, so that all of it is noted.
fn open_at_once<I, T: Send>(
    files: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
    open: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let open = |file, _: &mut ()| match open(file) {
        Err(error) if is_not_fetched(&error) => Ok(Err(error)),
        opened => opened.map(Ok),
    };
    let files = files.into_iter();
    reserve_open_files(files.len());
    in_parallel(files, OPENED_AT_ONCE, open)?.into_iter().collect()
}

/// Fails for a file of a delta that is opened by itself. Nothing is looked up for one that cannot
/// be that.
fn refuse_delta<T: Store>(
    store: &T,
    file: &CheckpointFile<T::File>,
    limits: &Limits,
) -> Result<()> {
    if !file.looks_like_delta() {
        return Ok(());
    }
    let found = delta_index(store, &file.path, limits);
    found.map_or(Ok(()), |(_, index)| Err(index.refused().in_path(&file.path)))
}

/// The index of the delta that names a file, if it lies beside it.
pub(super) fn delta_index<T: Store>(
    store: &T,
    file: &Path,
    limits: &Limits,
) -> Option<(PathBuf, Index)> {
    let path = file.with_file_name(STANDARD_INDEX);
    let is_there = matches!(store.kind(&path), Ok(Some(FileKind::File)));
    let index = is_there.then(|| Index::read_any(store, &path, limits).ok()).flatten()?;
    let names_it = index.is_delta && index.files_beside(&path).iter().any(|named| named == file);
    names_it.then_some((path, index))
}

/// Opens one file of a store as a checkpoint.
pub(crate) fn open_single<T: Store>(store: &T, path: &Path) -> Result<Checkpoint<T::File>> {
    open_alone(store, path, &Limits::default())
}

fn open_alone<T: Store>(store: &T, path: &Path, limits: &Limits) -> Result<Checkpoint<T::File>> {
    let file = open_shard(store, path, limits)?;
    refuse_delta(store, &file, limits)?;
    Checkpoint::from_single(file)
}

fn open_shard<T: Store>(
    store: &T,
    path: &Path,
    limits: &Limits,
) -> Result<CheckpointFile<T::File>> {
    let span = Span::open(path.display());
    let _open = span.enter();
    let open = || store.open(path).and_then(|source| SafeTensors::from_source_with(source, limits));
    // When a save takes one of several names from a file, the kernel sets the number of links a
    // moment before the time of change. A file that was opened in this moment seems to have been
    // written to since.
    let archive = open().or_else(|error| if says_changed(&error) { open() } else { Err(error) });
    let archive = archive.map_err(|error| error.in_path(path))?;
    span.record_bytes(archive.header().data_start());
    Ok(CheckpointFile { path: path.into(), archive })
}

/// Opens several files, none of which has a tensor of another, as one checkpoint. The paths are
/// sorted.
pub(super) fn open_each<T: Store>(
    store: &T,
    paths: &[PathBuf],
    limits: &Limits,
) -> Result<Checkpoint<T::File>> {
    let files = open_shards_at(store, paths, limits)?;
    files.iter().try_for_each(|file| refuse_delta(store, file, limits))?;
    join(files)
}

/// Opens files at these paths, some at once.
pub(super) fn open_shards_at<T: Store>(
    store: &T,
    paths: &[PathBuf],
    limits: &Limits,
) -> Result<Vec<CheckpointFile<T::File>>> {
    open_at_once(paths, |path| open_shard(store, path, limits))
}

/// Fails if a file has parts of tensors: they must not be taken for whole ones.
fn refuse_parts<S>(file: &CheckpointFile<S>) -> Result<()> {
    if !dcp::has_parts(file) && !divided::has_parts(file) {
        return Ok(());
    }
    Err(Error::from(RankProblem::PartsOfTensors).in_path(&file.path))
}

/// Joins open files, none of which has a tensor of another, to one checkpoint. They are sorted by
/// their paths.
pub(super) fn join<S: ReadAt>(shards: Vec<CheckpointFile<S>>) -> Result<Checkpoint<S>> {
    let mut places = Vec::new();
    let mut owners = HashMap::new();
    for (file, shard) in shards.iter().enumerate() {
        refuse_parts(shard)?;
        for (position, info) in shard.archive.header().iter().enumerate() {
            if let Some(other) = owners.insert(info.name(), file) {
                let other = shards[other].path.display().to_string();
                let error = Error::from(ErrorKind::InTwoFiles { other });
                return Err(error.in_tensor(info.name()).in_path(&shard.path));
            }
            places.push(CatalogPlace { file, position });
        }
    }
    drop(owners);
    Ok(Checkpoint::assemble(shards, places, None))
}

impl<S: ReadAt> Checkpoint<S> {
    /// A checkpoint of one file.
    pub(super) fn from_single(shard: CheckpointFile<S>) -> Result<Self> {
        refuse_parts(&shard)?;
        Ok(Self::of_file(shard))
    }

    /// The same of a file that may have parts of tensors.
    pub(super) fn of_file(file: CheckpointFile<S>) -> Self {
        let places = (0..file.archive.header().len())
            .map(|position| CatalogPlace { file: 0, position })
            .collect();
        Self::assemble(vec![file], places, None)
    }

    /// A checkpoint of an index and its shards. Of each shard, it has only the tensors that the
    /// index maps to that shard. So if two shards contain a tensor, the index decides.
    pub(super) fn from_shards(
        shards: Vec<CheckpointFile<S>>,
        index: &Index,
        path: &Path,
        version: Option<Version>,
    ) -> Result<Self> {
        let mut places = Vec::new();
        for (file, (shard, names)) in index.shards().enumerate() {
            let header = shards[file].archive.header();
            let start = places.len();
            for name in names {
                let Some(position) = header.position(name) else {
                    let error = Error::from(ErrorKind::NotInShard { shard: shard.to_owned() });
                    return Err(error.in_tensor(name).in_path(path));
                };
                places.push(CatalogPlace { file, position });
            }
            places[start..].sort_unstable_by_key(|place| place.position);
        }
        let mut checkpoint = Self::assemble(shards, places, Some((index, path.into())));
        checkpoint.about.index_version = version;
        Ok(checkpoint)
    }
}

/// Adds a tensor to the error of a shard that is missing or truncated: the first one that the index
/// maps to the shard.
///
/// Other errors are about the content of the shard, and stay as they are.
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
