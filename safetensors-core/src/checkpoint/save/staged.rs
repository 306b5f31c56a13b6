//! [`StagedShards`]: a checkpoint between writing and its commit.

use std::collections::BTreeMap;
use std::path::Path;

use super::commit::{Done, NewFiles, commit, finish};
use super::commit_parts::commit_parts;
use super::current::highest_limits;
use crate::checkpoint::index::Index;
use crate::checkpoint::store::{LocalStore, Versions, WritableDirectory};
use crate::checkpoint::{CheckpointPath, FilePattern, LocalDirectory, ShardOptions};
use crate::file::io::{FileSource, SafeTensors};
use crate::file::save::atomic::sync_path;
use crate::file::save::leftovers::remove_leftovers_now;
use crate::format::error::{Error, ErrorKind, Result};

/// The files of a saved checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedShards {
    /// The names of the files in order, without the index.
    pub files: Vec<String>,
    /// The number of bytes of all tensors.
    pub total_size: u64,
}

/// A checkpoint with all its files written, but not yet named. Dropping it removes them. Check
/// conditions of the last moment, such as unchanged sources, between [`begin`](Self::begin) and
/// [`commit`](Self::commit).
///
/// ```
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::checkpoint::stage_sharded_to;
/// use safetensors_core::{Checkpoint, Limits, ShardOptions, TensorView};
///
/// let mut store = MemoryStore::default();
/// let bias = TensorView::from_slice(&[2], &[1_u8, 2])?;
/// let mut staged = stage_sharded_to(&mut store, [("bias", bias)], &ShardOptions::new())?;
/// // No other writer can come in between from here on, or the commit notices it.
/// staged.begin()?;
/// staged.commit()?;
/// drop(staged);
/// assert_eq!(Checkpoint::open_in(store, "", &Limits::default())?.len(), 1);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Debug)]
#[doc(hidden)]
pub struct StagedShards<'d, D: WritableDirectory> {
    directory: &'d mut D,
    options: ShardOptions,
    files: NewFiles,
    saved: SavedShards,
    before: Option<Versions<D::Version>>,
    is_in_place: bool,
    done: Done<D::Version>,
}

impl<D: WritableDirectory> Drop for StagedShards<'_, D> {
    fn drop(&mut self) {
        if self.before.is_some() {
            self.directory.release();
        }
    }
}

impl<'d, D: WritableDirectory> StagedShards<'d, D> {
    pub(crate) fn new(
        directory: &'d mut D,
        options: &ShardOptions,
        index: Index,
        saved: SavedShards,
    ) -> Self {
        let beside = options.others.names().map(str::to_owned).collect();
        let files = NewFiles { index, json: None, beside, replaces_any: false };
        Self::with_files(directory, options.clone(), files, saved)
    }

    fn with_files(
        directory: &'d mut D,
        options: ShardOptions,
        files: NewFiles,
        saved: SavedShards,
    ) -> Self {
        let done = Done { placed: Vec::new(), left: Vec::new() };
        Self { directory, options, files, saved, before: None, is_in_place: false, done }
    }

    /// Takes the lock of the directory, or begins to notice other writers, until the commit. After
    /// an error this can be called again.
    #[doc(hidden)]
    pub fn begin(&mut self) -> Result<()> {
        if self.before.is_some() || self.is_in_place {
            return Ok(());
        }
        let begun = self.try_begin();
        if begun.is_err() {
            self.directory.release();
        }
        begun.map_err(|error| error.in_path(self.directory.path()))
    }

    fn try_begin(&mut self) -> Result<()> {
        let NewFiles { index, beside, .. } = &self.files;
        let files = index.shards().map(|(file, _)| file).chain(beside.iter().map(String::as_str));
        let files: Vec<_> = files.collect();
        let before = self.directory.begin(self.options.pattern(), &files)?;
        let mut others = before.clone();
        // An earlier attempt of this commit may have placed some files.
        for (name, version) in &self.done.placed {
            others.retain(|other, found| other != name || Some(&*found) != version.as_ref());
        }
        unless_refused(self.directory, &others, &self.options, beside)?;
        self.before = Some(before);
        Ok(())
    }

    /// Puts the checkpoint in place, after [`begin`](Self::begin).
    ///
    /// After an error other than [`ErrorKind::Overtaken`] this can be called again, even if the
    /// directory already opens as the new checkpoint. Stores other than the local disk and memory
    /// may have lost files by then.
    ///
    /// # Errors
    ///
    /// As for [`save_sharded`](crate::save_sharded), except for writing the files.
    #[doc(hidden)]
    pub fn commit(&mut self) -> Result<SavedShards> {
        self.begin()?;
        let committed = match self.before.take() {
            Some(_) if self.options.dcp => commit_parts(self.directory, &self.options, &self.files),
            Some(before) => {
                commit(self.directory, &self.options, &self.files, before, &mut self.done)
            }
            None => remove_left(self.directory, &mut self.done.left)
                .and_then(|()| finish(self.directory)),
        };
        self.directory.release();
        self.is_in_place |= committed.is_ok() || !self.done.left.is_empty();
        committed.map_err(|error| error.in_path(self.directory.path()))?;
        Ok(self.saved.clone())
    }
}

impl LocalDirectory {
    /// Removes the hidden files that killed processes have left for a file of this name, or for its
    /// checkpoint, as [`create`](Self::create) does. Errors are ignored.
    #[doc(hidden)]
    pub fn clean(directory: impl AsRef<Path>, file_name: &str) {
        remove_leftovers_now(directory.as_ref(), file_name.as_ref());
    }

    /// Replaces a path in the [`staging`](Self::staging) directory by the final path, in an error.
    #[must_use]
    #[doc(hidden)]
    pub fn locate(&self, error: Error) -> Error {
        error.moved_below(self.staging(), &self.directory)
    }

    /// Stages a checkpoint, or files of a foreign index, in the [`staging`](Self::staging)
    /// directory: `main`, its file or index, the files that this index names, and `beside`, by
    /// relative paths.
    ///
    /// A file of `beside` replaces an earlier one, unless the options forbid that. A commit that
    /// fails after that puts the earlier one back, and cannot be repeated.
    ///
    /// ```
    /// use safetensors_core::checkpoint::LocalDirectory;
    /// use safetensors_core::{Checkpoint, SaveOptions, ShardOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let mut directory = LocalDirectory::create(dir.path(), &ShardOptions::new())?;
    /// let bias = TensorView::from_slice(&[2], &[1_u8, 2])?;
    /// save(directory.staging().join("a.safetensors"), [("bias", bias)], &SaveOptions::new())?;
    /// std::fs::write(directory.staging().join("notes.txt"), "b")?;
    /// directory.staged("a.safetensors", ["notes.txt"])?.commit()?;
    /// assert_eq!(Checkpoint::open(dir.path())?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)]
    pub fn staged<N: Into<String>>(
        &mut self,
        main: &str,
        beside: impl IntoIterator<Item = N>,
    ) -> Result<StagedShards<'_, Self>> {
        let path = self.hidden(main);
        let beside: Vec<String> = beside.into_iter().map(N::into).collect();
        let read = || -> Result<_> {
            if let Some(CheckpointPath::Index(_)) = CheckpointPath::from_name(main) {
                let index = Index::read_any(&LocalStore, &path, &highest_limits())?;
                return Ok((index, Some(FileSource::open(&path)?.read_to_vec()?)));
            }
            let file = SafeTensors::from_source_with(FileSource::open(&path)?, &highest_limits())?;
            let names = file.tensors().map(|tensor| tensor.name().to_owned()).collect();
            let shards = BTreeMap::from([(main.to_owned(), names)]);
            Ok((Index { shards, ..Index::default() }, None))
        };
        let read =
            read().map_err(|error| error.in_path(&path).moved(&path, &self.destination(main)));
        let (index, json) = read?;
        if self.save_options().durable {
            for name in &beside {
                sync_path(&self.hidden(name))
                    .map_err(|error| Error::io(error, &self.destination(name)))?;
            }
        }
        let files = index.shards.keys().cloned().collect();
        let saved = SavedShards { files, total_size: index.total_size.unwrap_or(0) };
        self.options.file_pattern = FilePattern::from_name(main);
        let options = self.options.clone();
        let files = NewFiles { index, json, beside, replaces_any: true };
        Ok(StagedShards::with_files(self, options, files, saved))
    }
}

fn remove_left<D: WritableDirectory>(
    directory: &mut D,
    left: &mut Vec<(String, D::Version)>,
) -> Result<()> {
    while let Some((name, version)) = left.last() {
        let path = directory.path().join(name);
        let removed = directory.remove(name, version);
        removed.map_err(|error| error.left_behind().in_path(path))?;
        left.pop();
    }
    Ok(())
}

pub(crate) fn unless_refused<D: WritableDirectory>(
    directory: &D,
    found: &Versions<D::Version>,
    options: &ShardOptions,
    beside: &[String],
) -> Result<()> {
    if options.overwrites() {
        return Ok(());
    }
    let pattern = options.pattern();
    let index = pattern.index_name();
    let exists =
        |name: &str| Err(Error::from(ErrorKind::FileExists).in_path(directory.path().join(name)));
    if let Some(name) = found.keys().find(|name| pattern.matches(name) || **name == index) {
        return exists(name);
    }
    let beside = beside.iter().map(String::as_str);
    for name in options.with_beside(&[]).into_iter().chain(beside) {
        if directory.version_of(name)?.is_some() {
            return exists(name);
        }
    }
    Ok(())
}
