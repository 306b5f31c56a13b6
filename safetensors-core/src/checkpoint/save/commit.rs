//! [`commit`]: replaces a checkpoint in steps. After each the old or the new one is complete.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;

use super::current::{current, old_files};
use super::placed_files::{PlacedFiles, overtaken};
use crate::checkpoint::index::Index;
use crate::checkpoint::names::{INDEX_SUFFIX, STANDARD_FILE, set_aside};
use crate::checkpoint::store::{Store, Versions, WritableDirectory};
use crate::checkpoint::{FilePattern, ShardOptions};
use crate::file::io::SafeTensors;
use crate::file::io::identity::process_id;
use crate::format::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(crate) struct NewFiles {
    pub(crate) index: Index,
    pub(crate) json: Option<Vec<u8>>,
    pub(crate) beside: Vec<String>,
    pub(crate) replaces_any: bool,
}

#[derive(Debug)]
pub(crate) struct Done<V> {
    pub(crate) placed: Vec<(String, Option<V>)>,
    /// Old files that are still to be removed, in reverse order.
    pub(crate) left: Vec<(String, V)>,
}

/// Replaces the checkpoint of a directory, with the files `before`, by a new one.
// Several files cannot be renamed at once, and new shards may have the names of old ones. So a
// single file always decides the checkpoint that the directory opens as: `model.safetensors` if it
// exists, otherwise the index. It is replaced or removed in one step. No file changes while the
// index names it.
//
// 1. All new files are written, and have reached the disk. Then the directory is locked, if it can
//    be.
// 2. If new shards need names that the current index uses, these old shards get second names, and
//    an index with the second names replaces the current one. If there is no index, but one file
//    with another name than `model.safetensors`, an index of that file is written: without it, the
//    new shards would make the directory ambiguous.
// 3. The files next to the checkpoint get their names, so that older ones never describe new
//    tensors. Then the new files do. Nothing refers to them yet, but a `model.safetensors` counts
//    from here on.
// 4. The new index replaces the current one. A new checkpoint in one file also gets an index for
//    this step if the old one has an index.
// 5. The old files and the second names are removed. `model.safetensors` goes first, because it
//    comes before the index. If the new checkpoint has one file, the index goes last; if that file
//    is `model.safetensors`, first.
//
// After an interruption the next save takes the same steps with the index that it finds, and
// removes the leftovers. A process that reads the old index and then new shards notices that the
// index has changed, and starts again (`opening.rs`).
//
// Without a lock, another save may take these steps at the same time. So before each file gets its
// name, and before the old files go, each save checks that the index and its own files are still
// in place, and fails if they are not. Each removes only files that existed before it began.
pub(crate) fn commit<D: WritableDirectory>(
    directory: &mut D,
    options: &ShardOptions,
    new: &NewFiles,
    before: Versions<D::Version>,
    done: &mut Done<D::Version>,
) -> Result<()> {
    let pattern = options.pattern();
    let files: Vec<&str> = new.index.shards().map(|(file, _)| file).collect();
    let is_one_file = files == [pattern.file_name(0, 1)];
    let is_standard = files == [STANDARD_FILE];
    let index = pattern.index_name();
    let had_index = before.contains_key(&index);
    // All possible checks come before anything changes. An index is written for several files, and
    // for one file if the directory would open as the old index otherwise.
    let json = match &new.json {
        Some(json) => json.clone(),
        None if !is_one_file || (!is_standard && had_index) => {
            new.index.to_json().map_err(|error| error.in_path(directory.path().join(&index)))?
        }
        None => Vec::new(),
    };
    // An index of an earlier attempt is written again.
    done.placed.retain(|(name, _)| *name != index);
    let has_tensors = new.index.shards().any(|(_, names)| !names.is_empty());
    let mut commit = Commit {
        directory,
        pattern,
        index: index.clone(),
        before,
        others: BTreeSet::new(),
        placed: PlacedFiles::default(),
        has_tried_index: false,
        done,
    };
    let old = commit.find_old(&files, new.replaces_any)?;
    commit.refuse_foreign(&new.index)?;
    let second_names = commit.keep_old_loadable(old, &files)?;
    let decisive = if is_standard || is_one_file && !had_index { files[0] } else { &*index };
    let earlier = commit.before.get(decisive).cloned();
    let committed = commit
        .placed
        .put(commit.directory, options, &new.beside)
        .and_then(|()| commit.put_tensors(&files, json, has_tensors, &second_names));
    if let Err(error) = &committed
        && !matches!(error.kind(), ErrorKind::Overtaken { .. })
    {
        commit.put_back(decisive, earlier.as_ref());
    }
    committed
}

struct Commit<'a, D: WritableDirectory> {
    directory: &'a mut D,
    pattern: &'a FilePattern,
    index: String,
    /// The old checkpoint's files, and the index in place.
    before: Versions<D::Version>,
    /// Files of `before` that match no pattern of the new checkpoint.
    others: BTreeSet<String>,
    placed: PlacedFiles<D::Version>,
    /// The index of the new files may have been written.
    has_tried_index: bool,
    done: &'a mut Done<D::Version>,
}

#[derive(PartialEq, Eq)]
enum Goes {
    First,
    Last,
    Never,
}

impl<D: WritableDirectory> Commit<'_, D> {
    fn find_old(&mut self, files: &[&str], replaces_any: bool) -> Result<Option<Index>> {
        let is_one_file = files == [self.pattern.file_name(0, 1)];
        let path = self.directory.path();
        let index = path.join(&self.index);
        let has_index = self.before.contains_key(&self.index);
        // One new file needs no preparation: it replaces the old file, or is placed next to it. Nor
        // does a directory that opens as `model.safetensors` until that is removed.
        let old = if has_index || !is_one_file && !self.before.contains_key(STANDARD_FILE) {
            current(self.directory.store(), &path, has_index.then_some(&index))?
        } else {
            None
        };
        let store = self.directory.store();
        let others = if replaces_any { old_files(store, &path, files)? } else { BTreeSet::new() };
        for file in others {
            if !self.before.contains_key(&file)
                && let Some(version) = self.directory.version_of(&file)?
            {
                self.before.insert(file.clone(), version);
                self.others.insert(file);
            }
        }
        Ok(old)
    }

    /// Fails if a file would replace one that belongs to no version of the checkpoint.
    fn refuse_foreign(&self, new: &Index) -> Result<()> {
        for (file, tensors) in new.shards().filter(|(file, _)| !self.before.contains_key(*file)) {
            if self.directory.version_of(file)?.is_none() {
                continue;
            }
            let path = self.directory.path().join(file);
            let found = self.directory.store().open(&path).and_then(SafeTensors::from_source);
            let is_own = found.is_ok_and(|found| {
                let header = found.header();
                header.len() == tensors.len() && tensors.iter().all(|it| header.get(it).is_some())
            });
            if !is_own {
                return Err(Error::from(ErrorKind::FileExists).in_path(path));
            }
        }
        Ok(())
    }

    /// Does step 2, and returns the second names.
    fn keep_old_loadable(&mut self, old: Option<Index>, files: &[&str]) -> Result<Vec<String>> {
        let Some(mut old) = old else { return Ok(Vec::new()) };
        let index = self.directory.path().join(&self.index);
        let is_needed =
            |file: &&str| old.shards.contains_key(*file) && self.before.contains_key(*file);
        let in_the_way = files.iter().copied().filter(is_needed);
        let names: Vec<_> =
            in_the_way.map(|file| (file.to_owned(), self.second_name(file))).collect();
        if names.is_empty() && self.before.contains_key(&self.index) {
            return Ok(Vec::new());
        }
        for (file, second) in &names {
            if let Some(tensors) = old.shards.remove(file) {
                old.shards.insert(second.clone(), tensors);
            }
        }
        let json = old.to_json().map_err(|error| error.in_path(&index))?;
        self.directory.duplicate(&names)?;
        // The second names must last before an index relies on them.
        self.directory.sync()?;
        let written = self.replace_index(json)?;
        self.before.insert(self.index.clone(), written);
        self.directory.sync()?;
        Ok(names.into_iter().map(|(_, second)| second).collect())
    }

    fn second_name(&self, file: &str) -> String {
        loop {
            let mut random = RandomState::new().build_hasher();
            random.write_u32(process_id());
            let name = set_aside(file, random.finish() as u32);
            if !self.before.contains_key(&name) {
                return name;
            }
        }
    }

    /// Restores the earlier files, unless the directory may open as the new checkpoint.
    fn put_back(&mut self, decisive: &str, earlier: Option<&D::Version>) {
        let found = self.directory.version_of(decisive);
        if !found.is_ok_and(|found| found.as_ref() == earlier) {
            return;
        }
        // The error of the save is reported, not these. A file that stays is named by no index, and
        // the next save removes it.
        // A new index that could not be written may still come, and names the new files.
        let is_safe = !self.has_tried_index || self.directory.is_certain();
        let placed = if is_safe { std::mem::take(&mut self.done.placed) } else { Vec::new() };
        for (name, version) in placed {
            if let Some(version) = version {
                let _ = self.directory.take_back(&name, &version);
            }
        }
        self.placed.put_back(self.directory);
    }

    /// Does steps 3 to 5 for the files of tensors.
    fn put_tensors(
        &mut self,
        files: &[&str],
        json: Vec<u8>,
        has_tensors: bool,
        second_names: &[String],
    ) -> Result<()> {
        let is_one_file = files == [self.pattern.file_name(0, 1)];
        self.place(files)?;
        // `model.safetensors` takes precedence over an index. Any other single file opens if there
        // is no index. Readers refuse an index without tensors: so if one file without tensors
        // replaces a sharded checkpoint, the old index is removed and no other takes its place.
        let has_index = self.before.contains_key(&self.index);
        let opens_without_index = is_one_file && (files == [STANDARD_FILE] || !has_index);
        self.check_placed(opens_without_index)?;
        let index_goes = match (is_one_file, has_index) {
            (true, false) => Goes::Never,
            (true, true) if opens_without_index || !has_tensors => Goes::First,
            _ => {
                self.has_tried_index = true;
                let written = self.replace_index(json)?;
                if is_one_file {
                    self.before.insert(self.index.clone(), written);
                    Goes::Last
                } else {
                    self.done.placed.push((self.index.clone(), Some(written)));
                    Goes::Never
                }
            }
        };
        self.remove_old(second_names, &index_goes, is_one_file)
    }

    fn place(&mut self, files: &[&str]) -> Result<()> {
        for &file in files {
            // An earlier attempt of this commit has placed it, and a later step has failed.
            let known = self.done.placed.iter().find(|(name, _)| name == file);
            if let Some((_, Some(version))) = known
                && self.directory.version_of(file)?.as_ref() == Some(version)
            {
                continue;
            }
            // Another save would have replaced or removed the last file, with all before it.
            let last = self.done.placed.last().filter(|(_, version)| version.is_some());
            let last = last.map(|(name, version)| (name.as_str(), version.as_ref()));
            let index = (self.index.as_str(), self.before.get(&self.index));
            let others: Vec<_> = last.into_iter().chain([index]).collect();
            let placed = self.directory.place(file, &others);
            let version =
                placed.map_err(|error| error.in_path(self.directory.path().join(file)))?;
            self.done.placed.push((file.to_owned(), version));
        }
        Ok(())
    }

    /// Checks that this save's files are in place, and that their names last.
    fn check_placed(&mut self, are_new: bool) -> Result<()> {
        let checked = self.directory.sync().and_then(|()| {
            let now = self.now(&[])?;
            self.unless_replaced(&now)
        });
        // The error must not look like a save that has changed nothing.
        checked.map_err(|error| if are_new { error.in_place() } else { error })
    }

    fn now(&self, second: &[String]) -> Result<Versions<D::Version>> {
        let mut now = self.directory.files(self.pattern)?;
        let placed = self.done.placed.iter().map(|(name, _)| name);
        for name in placed.chain(&self.others).chain(second) {
            if let Some(version) = self.directory.version_of(name)? {
                now.insert(name.clone(), version);
            }
        }
        Ok(now)
    }

    fn unless_replaced(&self, now: &Versions<D::Version>) -> Result<()> {
        for (name, version) in &self.done.placed {
            let found = now.get(name);
            let is_same = found.is_some() && (version.is_none() || found == version.as_ref());
            if !is_same {
                return Err(overtaken(self.directory, name));
            }
        }
        Ok(())
    }

    fn replace_index(&mut self, json: Vec<u8>) -> Result<D::Version> {
        let replaced = self.directory.replace(&self.index, json, self.before.get(&self.index))?;
        replaced.ok_or_else(|| overtaken(self.directory, &self.index))
    }

    fn remove_old(&mut self, second: &[String], index: &Goes, is_one_file: bool) -> Result<()> {
        let is_shadowed = !is_one_file && self.before.contains_key(STANDARD_FILE);
        let path = self.directory.path();
        let failed = |error: Error, is_old: bool, name: &str| {
            if is_old {
                still_old(error, &path)
            } else {
                error.left_behind().in_path(path.join(name))
            }
        };
        let synced = self.directory.sync();
        synced.map_err(|error| if is_shadowed { error } else { error.in_place() })?;
        let now = self.now(second);
        let now = now.map_err(|error| failed(error, is_shadowed, ""))?;
        self.unless_replaced(&now)?;
        self.done.left = self.stale(&now, second, index);
        self.done.left.reverse();
        while let Some((name, version)) = self.done.left.last() {
            let is_old = is_shadowed && name == STANDARD_FILE;
            let removed = self.directory.remove(name, version);
            removed.map_err(|error| failed(error, is_old, name))?;
            self.done.left.pop();
        }
        finish(self.directory)
    }

    fn stale(
        &self,
        now: &Versions<D::Version>,
        second: &[String],
        index: &Goes,
    ) -> Vec<(String, D::Version)> {
        let mut stale = Vec::new();
        for (name, version) in now {
            let is_own = self.pattern.matches(name)
                || self.others.contains(name)
                || *name == self.index && *index != Goes::Never;
            let is_old = is_own && self.before.get(name) == Some(version) || second.contains(name);
            if is_old && !self.done.placed.iter().any(|(placed, _)| placed == name) {
                stale.push((name.clone(), version.clone()));
            }
        }
        let single = self.pattern.file_name(0, 1);
        stale.sort_by_key(|(name, _)| match (name == &self.index, index) {
            (true, Goes::First) => 0,
            // Nothing opens as an index of another name any more, but its files go after it.
            (false, _) if name.ends_with(INDEX_SUFFIX) => 0,
            (false, _) if *name == single => 1,
            (false, _) => 2,
            (true, _) => 3,
        });
        stale
    }
}

pub(crate) fn finish<D: WritableDirectory>(directory: &mut D) -> Result<()> {
    directory.sync().map_err(Error::in_place)?;
    directory.finish().map_err(Error::in_place)
}

/// The directory opens as the old `model.safetensors`, which could not be removed.
fn still_old(error: Error, directory: &Path) -> Error {
    let path = directory.join(STANDARD_FILE);
    match error.into_kind() {
        ErrorKind::Io(error) => {
            let message = format!(
                "the new checkpoint is complete, but the directory still opens as the earlier one; \
                 remove {STANDARD_FILE} to finish the save ({error})"
            );
            Error::io(io::Error::new(error.kind(), message), &path)
        }
        kind => Error::from(kind).in_path(path),
    }
}
