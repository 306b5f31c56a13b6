//! The steps of a sharded save: see [`save_sharded`](super::save_sharded).

use std::collections::BTreeMap;
use std::io;

use object_store::{ObjectMeta, PutResult};
use safetensors_core::checkpoint::{FilePattern, PlannedShards, SavedShards};
use safetensors_core::{Error, ErrorKind, Limits, Result, ShardOptions, TensorSource};
use serde_json::Value;

use super::directory::{Directory, Files, Put};
use super::problem::{left_behind, overtaken, still_old};
use super::ranks::attempt::{self, Attempts};
use super::upload::Upload;
use crate::cache::unique;
use crate::remote::object::{unquoted, version_of};
use crate::remote::place::RemotePlace;

/// Saves tensors to a directory, if `check` succeeds when everything is sent.
pub(super) fn save<N: AsRef<str>, S: TensorSource>(
    place: &RemotePlace,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
    check: impl FnOnce() -> Result<()>,
) -> Result<SavedShards> {
    let planned = PlannedShards::new(tensors, options)?;
    let index = planned.index_file()?;
    let directory = Directory::of(place, planned.pattern())?;
    let mut uploads = Vec::new();
    for (number, name) in planned.files().iter().enumerate() {
        let key = directory.file(name);
        let mut upload = Upload::new(place.service.clone(), key, planned.data_len(number));
        let sent = planned.write(number, &mut upload);
        sent.and_then(|()| Ok(upload.close().map_err(ErrorKind::Io)?))
            .map_err(|error| error.in_file(format!("{}/{name}", place.shown)))?;
        uploads.push((name.as_str(), upload));
    }
    check()?;
    let (shown, pattern) = (place.shown.as_str(), planned.pattern());
    Commit { directory, shown, pattern, index: index.as_ref() }.run(uploads)?;
    Ok(SavedShards { files: planned.files().to_vec(), total_size: planned.total_size() })
}

/// A checkpoint whose files are sent, and are to take their places.
struct Commit<'a> {
    directory: Directory,
    /// The path of the directory, for errors.
    shown: &'a str,
    pattern: &'a FilePattern,
    /// The name and the text of the new index, if there are several files.
    index: Option<&'a (String, Vec<u8>)>,
}

impl Commit<'_> {
    fn run(&self, uploads: Vec<(&str, Upload)>) -> Result<()> {
        let io = |error| Error::from(ErrorKind::Io(error));
        let new: Vec<&str> = uploads.iter().map(|(name, _)| *name).collect();
        let index = self.pattern.index_name();
        let (mut before, directories) = self.directory.list_all(&index).map_err(io)?;
        let attempts = attempt::find(&self.directory, self.pattern, &directories).map_err(io)?;

        // Step 2.
        let mut aside = Vec::new();
        if before.contains_key(&index) {
            aside = self.move_aside(&new, &mut before, &index)?;
        }
        // Step 3.
        let mut placed: Vec<(&str, PutResult)> = Vec::new();
        for (name, upload) in uploads {
            // So another save that is done meanwhile stays, unless it comes between this look and
            // the next step.
            self.check_before_placing(placed.last(), before.get(&index))?;
            match upload.commit() {
                Ok(result) => placed.push((name, result)),
                Err(error) => {
                    self.take_back(&placed, &before);
                    return Err(io(error).in_file(format!("{}/{name}", self.shown)));
                }
            }
        }
        // Step 4.
        self.check_placed(&placed, &self.directory.list(&index).map_err(io)?)?;
        if let Some((name, json)) = self.index {
            match self.directory.put(name, json, before.get(name)).map_err(io)? {
                Put::Done => {}
                Put::Overtaken => return Err(overtaken(name)),
            }
        }
        self.remove_earlier(&placed, &before, &aside, &attempts)
    }

    /// Step 5: removes what belongs to earlier checkpoints. The new one is in place, but if it has
    /// several files, an earlier single file still goes before it.
    ///
    /// A single new file goes before an index of ranks. While they may still use that index, what
    /// it names stays.
    fn remove_earlier(
        &self,
        placed: &[(&str, PutResult)],
        before: &Files,
        aside: &[String],
        attempts: &Attempts,
    ) -> Result<()> {
        let (index, single) = (self.pattern.index_name(), self.pattern.file_name(0, 1));
        let is_single = self.index.is_none();
        let now = self.directory.list(&index).map_err(|error| {
            if !is_single && before.contains_key(&single) {
                still_old(&error, &single, self.shown)
            } else {
                left_behind(error, "", self.shown)
            }
        })?;
        self.check_placed(placed, &now)?;
        // Ranks that have written the index beside the earlier single file may be about to remove
        // that file. They could remove the new one instead, and then need all of theirs.
        let had_both = before.contains_key(&single) && before.contains_key(&index);
        if is_single && had_both && !attempts.is_empty() {
            return Ok(());
        }
        let new: Vec<&str> = placed.iter().map(|(name, _)| *name).collect();
        self.remove_stale(&new, before, &now, aside)?;
        // Ranks may just have written the index.
        let version = |files: &Files| files.get(&index).map(version_of);
        if is_single && version(&now) != version(before) {
            return Ok(());
        }
        // What ranks have saved or begun to save before can no longer become the checkpoint.
        for (name, ids) in attempts {
            let removed = attempt::remove(&self.directory.below(name), self.pattern, ids);
            removed.map_err(|error| left_behind(error, name, self.shown))?;
        }
        Ok(())
    }

    /// Checks that the index and the file that was placed last are still in place.
    fn check_before_placing(
        &self,
        last: Option<&(&str, PutResult)>,
        index: Option<&ObjectMeta>,
    ) -> Result<()> {
        let version = |name: &str| {
            self.directory.version(name).map_err(|error| Error::from(ErrorKind::Io(error)))
        };
        if let Some((name, PutResult { e_tag: Some(tag), .. })) = last
            && version(name)?.as_deref() != Some(unquoted(tag))
        {
            return Err(overtaken(name));
        }
        let name = self.pattern.index_name();
        if version(&name)? == index.map(version_of) { Ok(()) } else { Err(overtaken(&name)) }
    }

    /// Copies files that the index in place names, and that will be replaced. Then replaces the
    /// index by one with the names of the copies. Returns these names, which no other save chooses.
    fn move_aside(&self, new: &[&str], before: &mut Files, index: &str) -> Result<Vec<String>> {
        let io = |error| Error::from(ErrorKind::Io(error));
        let unreadable = |_| {
            let message = format!("{index}, which is in place, cannot be read");
            io(io::Error::new(io::ErrorKind::InvalidData, message))
        };
        let most = Limits::default().index_bytes;
        let read = || self.directory.get(index, most).map_err(io)?.ok_or_else(|| overtaken(index));
        let (_, text) = read()?;
        let mut json: Value = serde_json::from_slice(&text).map_err(unreadable)?;
        let Some(Value::Object(map)) = json.get_mut("weight_map") else { return Ok(Vec::new()) };
        let mut second = BTreeMap::new();
        for file in map.values_mut() {
            let Value::String(name) = file else { continue };
            if !new.contains(&name.as_str()) || !before.contains_key(name) {
                continue;
            }
            let to = || FilePattern::backup_name(name, unique::number());
            let to = second.entry(name.clone()).or_insert_with(to).clone();
            *name = to;
        }
        if second.is_empty() {
            return Ok(Vec::new());
        }
        let copies: Vec<String> = second.values().cloned().collect();
        for (from, to) in &second {
            let byte_len = before.get(from).map_or(0, |meta| meta.size);
            if let Err(error) = self.directory.copy(from, to, byte_len) {
                copies.iter().for_each(|copy| _ = self.directory.remove(copy));
                return Err(io(error));
            }
        }
        // From here on the copies stay, also after an error: a request that failed may still reach
        // the store, and then the index names them. Else the next save removes them.
        let text = serde_json::to_vec(&json).map_err(|error| io(io::Error::from(error)))?;
        match self.directory.put(index, &text, before.get(index)).map_err(io)? {
            Put::Done => {}
            Put::Overtaken => return Err(overtaken(index)),
        }
        match read()? {
            (meta, now) if now == text => before.insert(index.to_owned(), meta),
            _ => return Err(overtaken(index)),
        };
        Ok(copies)
    }

    /// Removes files that became visible before another one could not. Those that replaced an old
    /// file stay: the index in place names a copy of the old one.
    fn take_back(&self, placed: &[(&str, PutResult)], before: &Files) {
        for (name, sent) in placed.iter().filter(|(name, _)| !before.contains_key(*name)) {
            // Another save may have replaced it meanwhile. What stays is named by no index.
            let version = self.directory.version(name).ok().flatten();
            let is_ours =
                version.is_some() && version.as_deref() == sent.e_tag.as_deref().map(unquoted);
            if is_ours {
                let _ = self.directory.remove(name);
            }
        }
    }

    /// Checks that the files are those that this save has sent.
    fn check_placed(&self, placed: &[(&str, PutResult)], now: &Files) -> Result<()> {
        for (name, sent) in placed {
            let is_same = now.get(*name).is_some_and(|meta| match (&meta.e_tag, &sent.e_tag) {
                (Some(found), Some(sent)) => unquoted(found) == unquoted(sent),
                _ => true,
            });
            if !is_same {
                return Err(overtaken(name));
            }
        }
        Ok(())
    }

    /// Removes the files of the earlier checkpoint that are still the same. The single file goes
    /// first, because the directory opens as it. If the new checkpoint has one file, the index goes
    /// before all others.
    fn remove_stale(
        &self,
        new: &[&str],
        before: &Files,
        now: &Files,
        aside: &[String],
    ) -> Result<()> {
        let index = self.pattern.index_name();
        let is_stale = |name: &&str| {
            let is_index = **name == index && self.index.is_none();
            (self.pattern.matches(name) || is_index) && !new.contains(name)
        };
        let is_same = |name: &&str| {
            let versions = (before.get(*name), now.get(*name));
            aside.iter().any(|copy| copy == name)
                || matches!(versions, (Some(a), Some(b)) if version_of(a) == version_of(b))
        };
        let names = now.keys().map(String::as_str);
        let mut stale: Vec<&str> = names.filter(is_stale).filter(is_same).collect();
        let single = self.pattern.file_name(0, 1);
        stale.sort_by_key(|name| (*name != index, *name != single));
        for name in stale {
            let removed = self.directory.remove(name);
            removed.map_err(|error| {
                if self.index.is_some() && name == single {
                    still_old(&error, name, self.shown)
                } else {
                    left_behind(error, name, self.shown)
                }
            })?;
        }
        Ok(())
    }
}
