//! Opening files that others may replace.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::locate::files_of;
use crate::checkpoint::index::Index;
use crate::checkpoint::pieces::{self, dcp, divided};
use crate::checkpoint::store::{FileKind, Store, Version, is_not_fetched};
use crate::checkpoint::{Assembled, Checkpoint, CheckpointFile, CheckpointPath, STANDARD_INDEX};
use crate::file::io::reserve::reserve_open_files;
use crate::file::io::stamp::says_changed;
use crate::file::io::{ReadAt, SafeTensors};
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::Limits;
use crate::format::parallel::in_parallel;
use crate::format::trace::Span;

// Threads mostly wait for the disk or the network, so the number of cores does not matter.
const OPENED_AT_ONCE: usize = 8;

// The last attempt is reached only if save follows save without a pause.
pub(crate) const ATTEMPTS: u32 = 50;

/// Pauses grow from zero to just below this.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Calls `open` again while it returns `None`, because the files change.
pub(crate) fn until_settled<C>(path: &Path, open: impl Fn() -> Result<Option<C>>) -> Result<C> {
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

pub(crate) struct Opener<'a, T> {
    pub(crate) store: &'a T,
    pub(crate) limits: &'a Limits,
    pub(crate) joins: bool,
}

/// `None` if the files changed, so that they may not belong together.
type Opened<T> = Result<Option<Checkpoint<Assembled<<T as Store>::File>>>>;

pub(crate) struct Indexed<S> {
    pub(crate) index: Index,
    pub(crate) shards: Vec<CheckpointFile<S>>,
    pub(crate) version: Option<Version>,
}

impl<T: Store> Opener<'_, T> {
    pub(crate) fn open(
        &self,
        path: &Path,
        locate: impl Fn() -> Result<CheckpointPath>,
    ) -> Result<Checkpoint<Assembled<T::File>>> {
        until_settled(path, || self.try_to_open(path, &locate))
    }

    fn try_to_open(&self, path: &Path, locate: &dyn Fn() -> Result<CheckpointPath>) -> Opened<T> {
        let located = match locate() {
            Ok(located) => located,
            // The directory was listed while its files were replaced.
            Err(_) if locate().is_ok() => return Ok(None),
            Err(error) => return self.gather_or(path, error),
        };
        let is_of_directory = located.path() != path;
        let opened = match &located {
            CheckpointPath::Index(index) => self.open_index(index),
            CheckpointPath::File(file) => self.open_file(file, is_of_directory.then_some(path)),
        };
        match opened {
            Ok(opened) => Ok(opened.map(|opened| opened.of_directory(is_of_directory))),
            // The path leads to another file or index by now.
            Err(_) if locate().is_ok_and(|now| now != located) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open_index(&self, path: &Path) -> Opened<T> {
        let Some(Indexed { index, shards, version }) = self.open_indexed(path, Index::read)? else {
            return Ok(None);
        };
        if let Some(file) = shards.iter().find(|file| dcp::has_parts(file)) {
            self.refuse_indexed(path, file, &shards)?;
        }
        let stored = Checkpoint::from_shards(shards, &index, path, version)?;
        if stored.files().iter().any(divided::has_parts) {
            self.refuse_parts(path)?;
            return pieces::join(path, stored, Some(index), self.limits).map(Some);
        }
        Ok(Some(stored.into_assembled()))
    }

    fn open_file(&self, path: &Path, directory: Option<&Path>) -> Opened<T> {
        let file = self.file(path)?;
        self.refuse_foreign(&file)?;
        match directory {
            Some(_) if divided::has_parts(&file) => {
                self.refuse_parts(path)?;
                pieces::join(path, Checkpoint::of_file(file), None, self.limits).map(Some)
            }
            Some(directory) if dcp::has_parts(&file) => {
                self.refuse_parts(path)?;
                let entries = self.store.list(directory);
                if entries.map_err(|error| error.in_path(directory))?.is_empty() {
                    return Err(dcp::not_listed(&file));
                }
                self.gather(directory)
            }
            _ => Ok(Some(Checkpoint::from_single(file)?.into_assembled())),
        }
    }

    fn gather_or(&self, directory: &Path, error: Error) -> Opened<T> {
        if !self.is_of_parts(directory, &error) {
            return Err(error);
        }
        self.refuse_parts(directory)?;
        let gathered = self.gather(directory)?;
        Ok(gathered.map(|gathered| gathered.of_directory(true)))
    }

    pub(crate) fn is_of_parts(&self, directory: &Path, error: &Error) -> bool {
        let ErrorKind::NoCheckpoint { found, .. } = error.kind() else { return false };
        let is_file =
            |name| matches!(CheckpointPath::from_name(name), Some(CheckpointPath::File(_)));
        let mut files = found.iter().filter_map(|name| self.file(&directory.join(name)).ok());
        found.iter().all(is_file) && files.next().is_some_and(|file| dcp::has_parts(&file))
    }

    pub(crate) fn has_parts(&self, path: &Path) -> bool {
        self.file(path).is_ok_and(|file| dcp::has_parts(&file) || divided::has_parts(&file))
    }

    fn refuse_parts(&self, path: &Path) -> Result<()> {
        if self.joins {
            return Ok(());
        }
        Err(Error::from(RankProblem::PartsOfTensors).in_path(path))
    }

    fn gather(&self, directory: &Path) -> Opened<T> {
        let names = files_of(self.store, directory)?;
        let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
        let files = self.files(&paths);
        if names.is_empty() || files_of(self.store, directory)? != names {
            return Ok(None);
        }
        for file in files.iter().flatten() {
            let is_replaced = file.archive.source().is_replaced();
            if is_replaced.map_err(|error| Error::io(error, &file.path))? {
                return Ok(None);
            }
        }
        let files = files?;
        if !files.iter().all(dcp::has_parts) {
            // Some are parts, and some are not: which ones are meant?
            let none = ErrorKind::NoCheckpoint { found: names, below: Vec::new() };
            return Err(Error::from(none).in_path(directory));
        }
        pieces::join_dcp(directory, files, self.limits).map(Some)
    }
}

impl<T: Store> Opener<'_, T> {
    pub(crate) fn alone(&self, path: &Path) -> Result<Checkpoint<T::File>> {
        let file = self.file(path)?;
        self.refuse_foreign(&file)?;
        Checkpoint::from_single(file)
    }

    pub(crate) fn each(&self, paths: &[PathBuf]) -> Result<Checkpoint<T::File>> {
        let files = self.files(paths)?;
        files.iter().try_for_each(|file| self.refuse_foreign(file))?;
        Checkpoint::from_files(files)
    }

    /// `None` if the index changed at the same time.
    pub(crate) fn open_indexed(
        &self,
        path: &Path,
        read: fn(&T, &Path, &Limits) -> Result<Index>,
    ) -> Result<Option<Indexed<T::File>>> {
        let version = self.version(path)?;
        let opened = read(self.store, path, self.limits)
            .and_then(|index| Ok((self.shards(path, &index)?, index)));
        // This comes before the error is looked at: a shard may be missing because its index was
        // replaced.
        if self.version(path)? != version {
            return Ok(None);
        }
        let (shards, index) = opened?;
        Ok(Some(Indexed { index, shards, version }))
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        self.store.version(path).map_err(|error| error.in_path(path))
    }

    fn shards(&self, path: &Path, index: &Index) -> Result<Vec<CheckpointFile<T::File>>> {
        let files: Vec<_> = index.paths_next_to(path).into_iter().zip(index.shards()).collect();
        open_at_once(files, |(file, (_, names))| self.shard(&file, names))
    }

    pub(crate) fn faults(&self, path: &Path, index: &Index) -> Vec<Error> {
        let files: Vec<_> = index.paths_next_to(path).into_iter().zip(index.shards()).collect();
        let opened = open_at_once(files, |(file, (shard, names))| {
            let opened = self.shard(&file, names);
            let places = |it: CheckpointFile<T::File>| it.places(shard, names, path).map(drop);
            Ok(opened.and_then(places).err())
        });
        opened.into_iter().flatten().flatten().collect()
    }

    fn shard(&self, file: &Path, names: &[String]) -> Result<CheckpointFile<T::File>> {
        self.file(file).map_err(|error| name_lost(error, file, names))
    }

    fn files(&self, paths: &[PathBuf]) -> Result<Vec<CheckpointFile<T::File>>> {
        open_at_once(paths, |path| self.file(path))
    }

    fn file(&self, path: &Path) -> Result<CheckpointFile<T::File>> {
        let span = Span::open(path.display());
        let _open = span.enter();
        // When a save takes one of several names from a file, the kernel sets the number of links a
        // moment before the time of change. A file that was opened in this moment seems to have
        // been written to since.
        let archive = match self.read_header(path) {
            Err(error) if says_changed(&error) => self.read_header(path),
            archive => archive,
        };
        let archive = archive.map_err(|error| error.in_path(path))?;
        span.record_bytes(archive.header().data_start());
        Ok(CheckpointFile { path: path.into(), archive })
    }

    fn read_header(&self, path: &Path) -> Result<SafeTensors<T::File>> {
        SafeTensors::from_source_with(self.store.open(path)?, self.limits)
    }

    /// Fails if an index may name a part of a tensor, and other parts are not in it.
    fn refuse_indexed(
        &self,
        index: &Path,
        file: &CheckpointFile<T::File>,
        shards: &[CheckpointFile<T::File>],
    ) -> Result<()> {
        shards.iter().try_for_each(dcp::refuse_indexed)?;
        let directory = index.parent().unwrap_or(Path::new(""));
        // Every other store finds the index there.
        if self.store.list(directory).map_err(|error| error.in_path(directory))?.is_empty() {
            return if dcp::are_whole(shards) { Ok(()) } else { Err(dcp::not_listed(file)) };
        }
        for name in files_of(self.store, directory)? {
            let path = directory.join(&name);
            if shards.iter().all(|shard| shard.path != path)
                && self.file(&path).is_ok_and(|other| dcp::has_parts(&other))
            {
                return Err(dcp::not_in_index(file, &name));
            }
        }
        Ok(())
    }

    fn refuse_foreign(&self, file: &CheckpointFile<T::File>) -> Result<()> {
        if !file.looks_foreign() {
            return Ok(());
        }
        match self.foreign_index(&file.path) {
            Some((_, index)) => Err(index.refused().in_path(&file.path)),
            None => Ok(()),
        }
    }

    /// Looks only in the directory of the file.
    pub(crate) fn foreign_index(&self, file: &Path) -> Option<(PathBuf, Index)> {
        let path = file.with_file_name(STANDARD_INDEX);
        if !matches!(self.store.kind(&path), Ok(Some(FileKind::File))) {
            return None;
        }
        let index = Index::read_any(self.store, &path, self.limits).ok()?;
        let names_it =
            index.is_foreign && index.paths_next_to(&path).iter().any(|named| named == file);
        names_it.then_some((path, index))
    }
}

/// A file that has not been fetched yet does not stop the others, so that all are noted.
fn open_at_once<I, T: Send>(
    files: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
    open: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let files = files.into_iter();
    reserve_open_files(files.len());
    let open = |file, _: &mut ()| match open(file) {
        Err(error) if is_not_fetched(&error) => Ok(Err(error)),
        opened => opened.map(Ok),
    };
    in_parallel(files, OPENED_AT_ONCE, open)?.into_iter().collect()
}

fn name_lost(error: Error, file: &Path, names: &[String]) -> Error {
    let is_lost = matches!(
        error.kind(),
        ErrorKind::Io(_)
            | ErrorKind::NotAFile { .. }
            | ErrorKind::TooShort { .. }
            | ErrorKind::HeaderPastEnd { .. }
    );
    let is_absent = matches!(
        error.kind(),
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::NotFound && error.get_ref().is_none()
    );
    match names.first() {
        Some(name) if is_absent => {
            let (count, end) = (names.len(), if names.len() == 1 { "" } else { "s" });
            let missing =
                format!("the shard is missing; the index needs it for {count} tensor{end}");
            Error::io(io::Error::new(io::ErrorKind::NotFound, missing), file).in_tensor(name)
        }
        Some(name) if is_lost => error.in_tensor(name),
        _ => error,
    }
}
