//! [`BucketDirectory`]: a directory of a remote store that checkpoints are saved to.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use safetensors_core::checkpoint::FilePattern;
use safetensors_core::checkpoint::store::{Versions, WritableDirectory};
use safetensors_core::{Result, SaveOptions, TensorSource};

use super::directory::{Directory, Files, ObjectVersion, Put};
use super::problem::{failed, left_behind};
use super::ranks::attempt::{self, Attempts};
use super::send;
use super::upload::Upload;
use crate::remote::RemoteStore;
use crate::remote::place::RemotePlace;

/// The objects below one prefix, as a save of several files changes them. Nothing is locked.
pub(super) struct BucketDirectory {
    directory: Directory,
    store: RemoteStore,
    /// The path of the directory.
    shown: String,
    pattern: FilePattern,
    /// Files that are sent, and not visible yet.
    sent: BTreeMap<String, Upload>,
    /// What there was when the save began to change the directory.
    found: Files,
    /// What ranks have saved or begun to save before.
    attempts: Attempts,
    /// Whether there is only one new file.
    is_single: bool,
    /// Whether ranks may still be about to use what this save would remove.
    is_used: bool,
}

impl BucketDirectory {
    /// The directory of a place, for files of a pattern.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io) for a pattern whose names no object can
    /// have.
    pub(super) fn of(place: &RemotePlace, pattern: &FilePattern) -> Result<Self> {
        Ok(Self {
            directory: Directory::of(place, pattern)?,
            store: RemoteStore::of(place),
            shown: place.shown.clone(),
            pattern: pattern.clone(),
            sent: BTreeMap::new(),
            found: Files::new(),
            attempts: Attempts::new(),
            is_single: false,
            is_used: false,
        })
    }
}

fn versions(files: Files) -> Versions<ObjectVersion> {
    files.into_iter().map(|(name, meta)| (name, meta.into())).collect()
}

impl WritableDirectory for BucketDirectory {
    type Version = ObjectVersion;
    type Store = RemoteStore;

    fn store(&self) -> &RemoteStore {
        &self.store
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(&self.shown)
    }

    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()> {
        let key = self.directory.file(name);
        let upload = send(&self.directory.service, key, tensors, options)?;
        self.sent.insert(name.to_owned(), upload);
        Ok(())
    }

    fn begin(&mut self, pattern: &FilePattern, new: &[&str]) -> Result<Versions<ObjectVersion>> {
        let (index, single) = (pattern.index_name(), pattern.file_name(0, 1));
        let (found, directories) = self.directory.list_all(&index).map_err(failed)?;
        self.attempts = attempt::find(&self.directory, pattern, &directories).map_err(failed)?;
        // Ranks that have written the index beside the earlier single file may be about to remove
        // that file. They could remove the new one instead, and then need all of theirs.
        let had_both = found.contains_key(&single) && found.contains_key(&index);
        self.is_single = new == [single];
        self.is_used = self.is_single && had_both && !self.attempts.is_empty();
        self.found = found.clone();
        Ok(versions(found))
    }

    fn files(&self, pattern: &FilePattern) -> Result<Versions<ObjectVersion>> {
        self.directory.list(&pattern.index_name()).map(versions).map_err(failed)
    }

    fn version_of(&self, name: &str) -> Result<Option<ObjectVersion>> {
        Ok(self.directory.find(name).map_err(failed)?.map(ObjectVersion::from))
    }

    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&ObjectVersion>)],
    ) -> Result<Option<ObjectVersion>> {
        self.check_versions(others)?;
        let missing = || failed(io::ErrorKind::NotFound.into());
        let sent = self.sent.remove(name).ok_or_else(missing)?.commit().map_err(failed)?;
        Ok(Some(sent.into()))
    }

    /// The store copies the files.
    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()> {
        for (number, (from, to)) in names.iter().enumerate() {
            let byte_len = self.found.get(from).map_or(0, |meta| meta.size);
            if let Err(error) = self.directory.copy(from, to, byte_len) {
                names[..=number].iter().for_each(|(_, copy)| _ = self.directory.remove(copy));
                return Err(failed(error));
            }
        }
        Ok(())
    }

    /// By a condition of the store, or by a look just before where the store knows none. After an
    /// error the second names stay: the request may still reach the store, and then the index names
    /// them. Else the next save removes them.
    fn replace(
        &mut self,
        name: &str,
        bytes: Vec<u8>,
        before: Option<&ObjectVersion>,
    ) -> Result<Option<ObjectVersion>> {
        match self.directory.put(name, &bytes, before).map_err(failed)? {
            Put::Done(version) => Ok(Some(version)),
            Put::Overtaken => Ok(None),
        }
    }

    fn remove(&mut self, name: &str, _: &ObjectVersion) -> Result<()> {
        if self.is_used { Ok(()) } else { self.directory.remove(name).map_err(failed) }
    }

    /// Removes what ranks have saved or begun to save before. It can no longer become the
    /// checkpoint, unless they have just written their index beside a single file.
    fn finish(&mut self) -> Result<()> {
        let behind = |error, name: &str| left_behind(error, name, &self.shown);
        let index = self.pattern.index_name();
        if self.is_used
            || self.attempts.is_empty()
            || self.is_single
                && self.directory.find(&index).map_err(|error| behind(error, &index))?.is_some()
        {
            return Ok(());
        }
        for (name, ids) in &self.attempts {
            let removed = attempt::remove(&self.directory.below(name), &self.pattern, ids);
            removed.map_err(|error| behind(error, name))?;
        }
        Ok(())
    }
}
