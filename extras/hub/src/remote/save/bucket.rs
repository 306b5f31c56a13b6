//! [`BucketDirectory`]: a directory of a remote store to save checkpoints to.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use safetensors_core::checkpoint::FilePattern;
use safetensors_core::checkpoint::store::{CopyFile, Versions, WritableDirectory};
use safetensors_core::{Result, SaveOptions, TensorSource};

use super::directory::{Directory, Files, ObjectVersion, Put};
use super::upload::Upload;
use super::{failed, send};
use crate::remote::RemoteStore;
use crate::remote::place::RemotePlace;

/// Nothing is locked.
pub(super) struct BucketDirectory {
    directory: Directory,
    store: RemoteStore,
    shown: String,
    /// Not visible yet.
    sent: BTreeMap<String, Upload>,
    found: Files,
}

impl BucketDirectory {
    pub(super) fn new(place: &RemotePlace, pattern: &FilePattern) -> Result<Self> {
        Ok(Self {
            directory: Directory::new(place, pattern)?,
            store: RemoteStore::at(place),
            shown: place.shown.clone(),
            sent: BTreeMap::new(),
            found: Files::new(),
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

    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        let key = self.directory.file(name);
        let mut upload = Upload::new(Arc::clone(&self.directory.service), key, 0);
        copy(&mut upload)?;
        upload.close().map_err(failed)?;
        self.sent.insert(name.to_owned(), upload);
        Ok(())
    }

    fn begin(&mut self, pattern: &FilePattern, _: &[&str]) -> Result<Versions<ObjectVersion>> {
        self.found = self.directory.list(&pattern.index_name()).map_err(failed)?;
        Ok(versions(self.found.clone()))
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

    /// Uses a condition of the store, or asks just before. After an error the second names stay:
    /// the request may still arrive, and then the index names them. Otherwise the next save removes
    /// them.
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
        self.directory.remove(name).map_err(failed)
    }
}
