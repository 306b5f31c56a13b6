//! [`Attempt`]: the parts of all ranks, until they are complete and put in place.
//!
//! Its state is a hidden directory, which changes only under the lock of the checkpoint's
//! directory:
//!
//! | file | content |
//! |---|---|
//! | `attempt.json` | the plan and options, and its place in the order of attempts |
//! | a file of tensors | the parts of a rank |
//! | `rank-00002.done` | marks that all files of the rank have reached the disk |
// So exactly one rank finds that no mark is missing, and puts everything in place before it
// releases the lock: the files get second names in the hidden directory of a `LocalDirectory`, and
// from there replace the old checkpoint (`StagedShards`). If that rank is killed, any rank that
// saves again tries again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::RankFiles;
use super::planned::check_part;
use crate::checkpoint::store::LocalStore;
use crate::checkpoint::{
    Index, LocalDirectory, SavedShards, ShardOptions, StagedShards, write_others,
};
use crate::file::io::hidden::{attempt_directory, attempt_of, is_attempt};
use crate::file::io::identity::unless_missing;
use crate::file::io::lock::DirectoryLock;
use crate::file::io::unfinished::{Owned, Steps};
use crate::file::io::{FileSource, SafeTensors, failpoint, next_to};
use crate::file::save::AtomicFile;
use crate::file::save::atomic::{sync, sync_directory};
use crate::file::save::directories::NewDirectories;
use crate::file::save::permissions::create_private_directory;
use crate::file::save::temporary::TempDirectory;
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::header::{ATTEMPT_KEY, Limits, Metadata};

const MANIFEST: &str = "attempt.json";

const MOST: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Greater than in each attempt that began before and was not complete then.
    sequence: u64,
    digest: String,
}

/// The result of [`RankSaver::save`](super::RankSaver::save).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankSaved {
    /// The rank's parts are saved. The checkpoint appears when the other ranks have saved theirs.
    Waiting {
        /// The number of ranks that have not saved yet.
        missing: usize,
    },
    /// This rank was the last one, and the checkpoint is in place.
    Complete(SavedShards),
}

pub(super) fn check_attempt(name: &str) -> Result<()> {
    match is_attempt(name) {
        true => Ok(()),
        false => Err(RankProblem::BadAttempt { found: name.into() }.into()),
    }
}

pub(super) struct Attempt<'f> {
    directory: &'f Path,
    name: &'f str,
    files: &'f RankFiles<'f>,
    options: &'f ShardOptions,
    index: PathBuf,
    path: PathBuf,
    /// Removed at the end if they are still empty.
    made: NewDirectories,
}

impl<'f> Attempt<'f> {
    pub(super) fn enter(
        directory: &'f Path,
        name: &'f str,
        files: &'f RankFiles<'f>,
        options: &'f ShardOptions,
    ) -> Result<Self> {
        check_attempt(name)?;
        let made =
            NewDirectories::create_all(directory).map_err(|error| Error::io(error, directory))?;
        let index = directory.join(options.pattern().index_name());
        let path = attempt_directory(&index, name);
        let attempt = Self { directory, name, files, options, index, path, made };
        let _lock = attempt.lock()?;
        if attempt.is_published()? {
            // A leftover, if the last rank was killed just before its end.
            let _ = attempt.remove(&attempt.path);
            return Err(attempt.complete());
        }
        let digest = files.digest().to_string();
        match read_manifest(&attempt.path)? {
            Some(found) if found.digest == digest => {}
            Some(_) => {
                let attempt = name.into();
                return Err(Error::from(RankProblem::AttemptDiffers { attempt }).in_path(directory));
            }
            None => attempt.create(digest)?,
        }
        Ok(attempt)
    }

    fn create(&self, digest: String) -> Result<()> {
        let others = self.others()?;
        let sequence = others.iter().filter_map(|(_, manifest)| Some(manifest.as_ref()?.sequence));
        let manifest = Manifest { sequence: sequence.max().unwrap_or(0) + 1, digest };
        self.create_with(&manifest).map_err(|error| self.of_directory(error))
    }

    fn create_with(&self, manifest: &Manifest) -> Result<()> {
        let steps = Steps::begin();
        let made = match create_private_directory(&self.path) {
            Ok(()) => Some(Owned::directory(&self.path)),
            Err(error) if !self.path.is_dir() => return Err(ErrorKind::Io(error).into()),
            Err(_) => None,
        };
        drop(steps);
        failpoint::hit("begin the attempt").map_err(ErrorKind::Io)?;
        let path = self.path.join(MANIFEST);
        let mut file = AtomicFile::create(&path, &self.options.save_options)?;
        serde_json::to_writer(&mut file, manifest).map_err(|error| ErrorKind::Io(error.into()))?;
        file.commit()?;
        // Other ranks join it from here on, so it outlives this process.
        made.into_iter().for_each(Owned::keep);
        Ok(())
    }

    pub(super) fn begin(&self, rank: usize) -> Result<TempDirectory> {
        let made = failpoint::hit("create")
            .and_then(|()| TempDirectory::create(&self.path.join(format!("rank-{rank:05}"))));
        made.map_err(|error| self.explain(Error::io(error, self.directory), &self.path))
    }

    /// Adds the written files of a rank. After the last rank, all files are put in place.
    pub(super) fn finish(self, rank: usize, temp: TempDirectory) -> Result<RankSaved> {
        let lock = self.lock()?;
        self.check_current()?;
        self.add(rank, &temp)
            .map_err(|error| self.explain(Error::io(error, self.directory), temp.path()))?;
        drop(temp);
        let missing = self.missing().map_err(|error| Error::io(error, self.directory))?;
        if missing > 0 {
            return Ok(RankSaved::Waiting { missing });
        }
        self.publish(&lock)?;
        Ok(RankSaved::Complete(self.files.saved()))
    }

    // While the rank's mark is missing, no process uses its files.
    fn add(&self, rank: usize, temp: &TempDirectory) -> std::io::Result<()> {
        let mark = self.mark(rank);
        unless_missing(fs::remove_file(&mark))?;
        for file in self.files.of_rank(rank) {
            failpoint::hit("add a file of a rank")?;
            fs::rename(temp.path().join(&file.name), self.path.join(&file.name))?;
        }
        if self.durable() {
            sync_directory(&self.path)?;
            self.made.sync()?;
        }
        failpoint::hit("mark a rank")?;
        let file = File::create(&mark)?;
        if self.durable() {
            sync(&file)?;
            sync_directory(&self.path)?;
        }
        Ok(())
    }

    // Listed once: a shared file system takes long to look for each of a thousand marks.
    fn missing(&self) -> std::io::Result<usize> {
        Ok(self.files.plan.world_size().saturating_sub(marks(&self.path)?.len()))
    }

    /// Also removes the attempts that began before.
    fn publish(&self, lock: &DirectoryLock) -> Result<()> {
        for file in &self.files.files {
            self.check_file(file).map_err(|error| {
                error.moved(&self.path.join(&file.name), &self.directory.join(&file.name))
            })?;
        }
        let mut directory = LocalDirectory::create_locked(self.directory, self.options, lock)?;
        write_others(&mut directory, self.options)?;
        for file in &self.files.files {
            let from = self.path.join(&file.name);
            let to = directory.hidden(&file.name);
            let linked = failpoint::hit("link a file of a rank")
                .and_then(|()| fs::hard_link(&from, &to))
                .or_else(|_| self.take_out(file.rank, &from, &to));
            linked.map_err(|error| Error::io(error, &directory.destination(&file.name)))?;
        }
        let index = self.files.index(self.name);
        let index = index.map_err(|error| self.of_directory(error))?;
        StagedShards::new(&mut directory, self.options, index, self.files.saved()).commit()?;
        // A rank that is killed from here on leaves one hidden directory at most.
        drop(directory);
        let own = read_manifest(&self.path)?.map_or(u64::MAX, |manifest| manifest.sequence);
        let is_older =
            |manifest: &Option<Manifest>| manifest.as_ref().is_none_or(|it| it.sequence < own);
        let older = self.others()?.into_iter().filter(|(_, manifest)| is_older(manifest));
        for path in older.map(|(path, _)| path).chain([self.path.clone()]) {
            self.remove(&path).map_err(|error| {
                Error::from(ErrorKind::LeftBehind(error)).in_path(self.directory)
            })?;
        }
        Ok(())
    }

    // Disappears at once, because a rank may still be writing to it. Windows renames no directory
    // with an open file: there the content goes one by one, or with the next save.
    fn remove(&self, attempt: &Path) -> std::io::Result<()> {
        if !attempt.exists() {
            return Ok(());
        }
        failpoint::hit("remove an attempt")?;
        let temp = TempDirectory::create(&self.index)?;
        let renamed = match failpoint::lacks("renaming of directories") {
            true => Err(std::io::ErrorKind::PermissionDenied.into()),
            false => fs::rename(attempt, temp.path().join("attempt")),
        };
        renamed.map(|()| remove_in_use(&temp.path().join("attempt"))).or_else(|_| {
            // Without its mark no file of a rank counts, whenever this process is killed.
            for mark in marks(attempt)? {
                failpoint::hit("remove a mark")?;
                fs::remove_file(mark)?;
            }
            failpoint::hit("remove the files of an attempt")?;
            fs::remove_dir_all(attempt)
        })
    }

    // Without links. The file's rank loses its mark: if this rank is killed now, it has to save
    // again.
    fn take_out(&self, rank: usize, from: &Path, to: &Path) -> std::io::Result<()> {
        unless_missing(fs::remove_file(self.mark(rank)))?;
        fs::rename(from, to)
    }

    fn check_file(&self, file: &super::files::RankFile) -> Result<()> {
        let path = self.path.join(&file.name);
        let found = open(&path)?;
        for part in self.files.parts(file)? {
            let tensor = found.tensor(&part.name).map_err(|error| error.in_path(&path))?;
            let expected = (part.tensor.dtype(), part.shape.as_slice());
            check_part(expected, (tensor.dtype(), tensor.shape()))
                .map_err(|kind| Error::from(kind).in_tensor(&part.name).in_path(&path))?;
        }
        Ok(())
    }

    /// Returns `None` without a manifest. Skips unreadable attempts and the highest number.
    fn others(&self) -> Result<Vec<(PathBuf, Option<Manifest>)>> {
        let failed = |error| Error::io(error, self.directory);
        let mut others = Vec::new();
        for entry in fs::read_dir(self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path != self.path
                && attempt_of(&self.index, &path).is_some()
                && path.is_dir()
                && let Ok(manifest) = read_manifest(&path)
                && manifest.as_ref().is_none_or(|manifest| manifest.sequence < u64::MAX)
            {
                others.push((path, manifest));
            }
        }
        Ok(others)
    }

    /// Returns `true` if the directory's index, or its one file, comes from this attempt.
    fn is_published(&self) -> Result<bool> {
        let of_index = Index::read(&LocalStore, &self.index, &Limits::default());
        if self.is_own(of_index.map(|index| index.metadata))? {
            return Ok(true);
        }
        // Without an index, the first file comes last.
        let single = self.options.pattern().file_name(0, 1);
        let first = self.files.files.first().filter(|_| self.files.is_dcp);
        let path = self.directory.join(first.map_or(&single, |file| &file.name));
        self.is_own(open(&path).map(|file| file.metadata().clone()))
    }

    fn is_own(&self, metadata: Result<Metadata>) -> Result<bool> {
        match metadata {
            Ok(metadata) => Ok(metadata.get(ATTEMPT_KEY).is_some_and(|name| name == self.name)),
            Err(error) => match error.kind() {
                ErrorKind::Io(io) if io.kind() != std::io::ErrorKind::NotFound => Err(error),
                // A malformed file was not saved by this attempt.
                _ => Ok(false),
            },
        }
    }

    fn check_current(&self) -> Result<()> {
        let digest = self.files.digest().to_string();
        match read_manifest(&self.path)? {
            Some(manifest) if manifest.digest == digest => Ok(()),
            _ if self.is_published()? => Err(self.complete()),
            _ => Err(self.superseded()),
        }
    }

    pub(super) fn explain(&self, error: Error, needed: &Path) -> Error {
        match needed.try_exists() {
            Ok(false) => self.check_current().err().unwrap_or_else(|| self.superseded()),
            _ => error,
        }
    }

    fn complete(&self) -> Error {
        let attempt = self.name.into();
        Error::from(RankProblem::AttemptComplete { attempt }).in_path(self.directory)
    }

    fn superseded(&self) -> Error {
        let attempt = self.name.into();
        Error::from(RankProblem::AttemptSuperseded { attempt }).in_path(self.directory)
    }

    // The caller cannot use the names of hidden files.
    fn of_directory(&self, error: Error) -> Error {
        let hidden = self.path.join(MANIFEST);
        error.moved(&hidden, self.directory).in_path(self.directory)
    }

    fn lock(&self) -> Result<DirectoryLock> {
        DirectoryLock::wait_for(self.directory).map_err(|error| Error::io(error, self.directory))
    }

    fn mark(&self, rank: usize) -> PathBuf {
        self.path.join(format!("rank-{rank:05}.done"))
    }

    fn durable(&self) -> bool {
        self.options.save_options.durable
    }
}

/// Removes a directory that got another name. A rank that opened it by the old one may add a file
/// while it is emptied, but finds it no second time. What stays goes with the directory around it.
fn remove_in_use(directory: &Path) {
    for _ in 0..16 {
        let removed = fs::remove_dir_all(directory);
        if !removed.is_err_and(|it| it.kind() == std::io::ErrorKind::DirectoryNotEmpty) {
            return;
        }
    }
}

fn marks(attempt: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(attempt)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|it| it == "done"));
    Ok(paths)
}

fn read_manifest(attempt: &Path) -> Result<Option<Manifest>> {
    let Some(json) = next_to::read(attempt, MANIFEST, MOST)? else { return Ok(None) };
    let manifest = serde_json::from_slice(&json);
    manifest.map(Some).map_err(|error| Error::io(error.into(), &attempt.join(MANIFEST)))
}

fn open(path: &Path) -> Result<SafeTensors<FileSource>> {
    let opened = FileSource::open(path).and_then(SafeTensors::from_source);
    opened.map_err(|error| error.in_path(path))
}
