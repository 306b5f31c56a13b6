//! The last rank of an attempt: writing the index, and removing what came before.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

use safetensors_core::checkpoint::SavedShards;
use safetensors_core::ranks::{RankSaved, SavedIndex};
use safetensors_core::{Error, Result, TensorSource};

use super::attempt::{Attempt, Contents, attempt_of, directory_name, remove, remove_others};
use crate::remote::object::version_of;
use crate::remote::save::directory::{Files, ObjectVersion, Put};
use crate::remote::save::problem::{failed, left_behind, overtaken, still_old};

impl<T: TensorSource> Attempt<'_, T> {
    /// Writes the index, which names the files of all ranks.
    pub(super) fn publish(
        &self,
        contents: &Contents,
        rank: usize,
        turn: &str,
    ) -> Result<RankSaved> {
        let mut turns = contents.turns();
        turns.insert(rank, turn);
        // Each attempt that began before may be completed just now, and then it is replaced.
        let earlier = self.manifest.earlier.values().map(BTreeSet::len).sum();
        for _ in 0..=earlier {
            let now = self.directory.list(&self.planned.pattern().index_name()).map_err(failed)?;
            let (meta, index) = self.index()?.unzip();
            let index = index.flatten();
            if self.is_own(index.as_ref()) {
                break;
            }
            self.check_unchanged(meta.as_ref().map(version_of), index, &now)?;
            self.check_files(contents, &turns)?;
            let place = |rank, file: &str| self.path(turns.get(&rank).unwrap_or(&""), file);
            let (name, json) = self.planned.index_file(place)?;
            let before = meta.map(ObjectVersion::from);
            let put = self.directory.put(&name, &json, before.as_ref()).map_err(failed)?;
            if let (Put::Done(_), Some(index)) = (put, SavedIndex::from_json(&json)) {
                return self.finish(rank, turn, index);
            }
        }
        // Another rank that came last at the same time has written the index, or it is lost.
        self.ended(rank, turn)
    }

    /// What has become of an attempt that is no longer under way, or is complete.
    pub(super) fn ended(&self, rank: usize, turn: &str) -> Result<RankSaved> {
        match self.index()?.and_then(|(_, index)| index) {
            Some(index) if self.is_own(Some(&index)) => self.finish(rank, turn, index),
            index => Err(self.lost(index)),
        }
    }

    /// Ends an attempt whose index is in place.
    fn finish(&self, rank: usize, turn: &str, index: SavedIndex) -> Result<RankSaved> {
        self.clean_up()?;
        let own = self.path(turn, "");
        let has_files = self.planned.files().any(|(saver, _)| saver == rank);
        if has_files && !index.files.iter().any(|file| file.starts_with(&own)) {
            // Another rank came last, with the files of another call of this rank.
            let _ = self.forget(turn);
            return Err(self.complete());
        }
        let total_size = self.planned.total_size();
        Ok(RankSaved::Complete(SavedShards { files: index.files, total_size }))
    }

    /// The error if the index in place is neither the one from the beginning nor that of this
    /// attempt.
    fn lost(&self, index: Option<SavedIndex>) -> Error {
        match index {
            Some(_) => self.superseded(),
            None => overtaken(&self.planned.pattern().index_name()),
        }
    }

    /// Checks that every file that the index is to name is there.
    fn check_files(&self, contents: &Contents, turns: &BTreeMap<usize, &str>) -> Result<()> {
        for (number, (rank, file)) in self.planned.files().enumerate() {
            let turn = turns.get(&rank).unwrap_or(&"");
            let found = contents.lengths.get(&self.key(turn, file));
            let least = self.planned.data_len(number);
            if found.is_none_or(|&found| found <= least) {
                let found = found.map_or("none".into(), |found| format!("{found} bytes"));
                let message = format!(
                    "rank {rank} is done, but its file is not there: expected more than {least} \
                     bytes, found {found}; it should save again"
                );
                let error = failed(io::Error::new(io::ErrorKind::InvalidData, message));
                return Err(error.in_file(format!("{}/{}", self.shown, self.path(turn, file))));
            }
        }
        Ok(())
    }

    /// Checks that the checkpoint in place is the one from the beginning, or that of an attempt
    /// that began before. `version` is that of the index, `now` are the files of the directory.
    pub(super) fn check_unchanged(
        &self,
        version: Option<String>,
        index: Option<SavedIndex>,
        now: &Files,
    ) -> Result<()> {
        let pattern = self.planned.pattern();
        if version == self.manifest.index {
            if let Some(file) = self.manifest.changed(now) {
                return Err(overtaken(file));
            }
        } else {
            // An earlier attempt has removed other files, too.
            let is_earlier = |index: &SavedIndex| {
                let ids = self.manifest.earlier.get(&directory_name(pattern, &index.attempt));
                let is_of_it = |path: &String| {
                    attempt_of(path).is_some_and(|id| ids.is_some_and(|ids| ids.contains(id)))
                };
                index.files.iter().all(is_of_it)
            };
            if !index.as_ref().is_some_and(is_earlier) {
                return Err(self.lost(index));
            }
        }
        // The directory would open as a single file, whatever the index says.
        let single = pattern.file_name(0, 1);
        let version = now.get(&single).map(version_of);
        if version.is_some() && version.as_ref() != self.manifest.files.get(&single) {
            Err(overtaken(&single))
        } else {
            Ok(())
        }
    }

    /// Removes what the new checkpoint replaces: the single file first, because the directory opens
    /// as it, then the other files, the attempts that began before, and the marks of this one.
    /// Nothing is removed if the checkpoint was replaced meanwhile: whoever did so removes it.
    pub(super) fn clean_up(&self) -> Result<()> {
        let pattern = self.planned.pattern();
        let single = pattern.file_name(0, 1);
        let behind = |error, name: &str| left_behind(error, name, self.shown);
        let unknown = |error| {
            if self.manifest.files.contains_key(&single) {
                still_old(&error, &single, self.shown)
            } else {
                behind(error, "")
            }
        };
        let now = self.directory.list(&pattern.index_name()).map_err(unknown)?;
        let index = self.read_index().map_err(unknown)?.and_then(|(_, index)| index);
        let Some(index) = index.filter(|index| self.is_own(Some(index))) else { return Ok(()) };
        let is_stale = |name: &&String| {
            let versions = (self.manifest.files.get(*name), now.get(*name).map(version_of));
            matches!(versions, (Some(before), Some(now)) if *before == now)
        };
        let mut stale: Vec<&String> = self.manifest.files.keys().filter(is_stale).collect();
        stale.sort_by_key(|name| **name != single);
        for name in stale {
            self.directory.remove(name).map_err(|error| {
                if *name == single {
                    still_old(&error, name, self.shown)
                } else {
                    behind(error, name)
                }
            })?;
        }
        for (name, ids) in &self.manifest.earlier {
            let removed = remove(&self.directory.below(name), pattern, ids);
            removed.map_err(|error| behind(error, name))?;
        }
        let kept: HashSet<_> = index.files.iter().map(|path| self.directory.file(path)).collect();
        let removed = remove_others(&self.objects, pattern, &self.manifest.id, &kept);
        removed.map_err(|error| behind(error, &self.own))
    }
}
