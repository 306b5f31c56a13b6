//! [`RemoteStore`]: the files of checkpoints in a remote store.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use object_store::path::Path as Key;
use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::{Entry, FileKind, Store, Version};
use safetensors_core::{Error, ErrorKind, Result};

use super::object::{Object, Service, version_of};
use super::place::{Listing, Place};
use super::runtime::run;
use super::{RemoteFile, RemoteOptions};

/// How long a file that was fetched to learn whether it exists is kept for the call that opens it.
const KEPT: Duration = Duration::from_secs(20);

/// The files of a remote store, below the address that it was made for.
///
/// Whether a file exists is found out by fetching its first bytes, which opening needs anyway. So a
/// file is opened with one request, and an index with one more for each shard.
pub struct RemoteStore {
    pub(super) place: Place,
    /// Files that were fetched to learn whether they exist, until they are opened.
    found: Mutex<HashMap<Key, (Instant, RemoteFile)>>,
}

impl RemoteStore {
    /// Connects to the store of an address. No request is made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] for an address or an option that is malformed.
    pub fn new(address: &str, options: &RemoteOptions) -> Result<Self> {
        Ok(Self { place: Place::of(address, options)?, found: Mutex::default() })
    }

    /// The path that stands for the address that the store was made for. It begins like the
    /// address, has no credentials, and is that of a file, of an index or of a directory.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(&self.place.shown)
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.place.service)
    }

    /// Fetches the start of a file. `None` if there is no such file.
    fn fetch(&self, key: &Key) -> io::Result<Option<RemoteFile>> {
        match run(RemoteFile::open(self.service(), key.clone())).flatten() {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_file(&self, key: &Key) -> io::Result<bool> {
        let file = self.fetch(key)?;
        let is_file = file.is_some();
        let mut found = self.found();
        found.retain(|_, (since, _)| since.elapsed() < KEPT);
        found.extend(file.map(|file| (key.clone(), (Instant::now(), file))));
        Ok(is_file)
    }

    fn found(&self) -> MutexGuard<'_, HashMap<Key, (Instant, RemoteFile)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries of a directory; empty if the store cannot list.
    pub(super) fn entries(&self, directory: &Key) -> io::Result<Vec<Entry>> {
        if self.place.listing == Listing::Impossible {
            return Ok(Vec::new());
        }
        let (service, directory) = (self.service(), directory.clone());
        let listed = run(async move {
            let _permit = service.begin().await?;
            let listed = service.store.list_with_delimiter(Some(&directory)).await;
            listed.map_err(|error| service.io(&error))
        });
        let listed = listed.flatten()?;
        let entry = |key: &Key, kind| Some(Entry { name: key.filename()?.to_owned(), kind });
        let files = listed.objects.iter().filter_map(|meta| entry(&meta.location, FileKind::File));
        let below = &listed.common_prefixes;
        let directories = below.iter().filter_map(|key| entry(key, FileKind::Directory));
        Ok(files.chain(directories).collect())
    }

    fn kind_of(&self, path: &Path) -> io::Result<Option<FileKind>> {
        let key = self.place.key(path)?;
        let is_named = CheckpointPath::from_name(path).is_some()
            || path.extension().is_some_and(|extension| extension == "json");
        if !is_named {
            // The name is that of a directory, unless nothing lies in it.
            let is_directory = match self.place.listing {
                Listing::Possible => !self.entries(&key)?.is_empty(),
                Listing::Impossible => {
                    let child = |name: &str| key.clone().join(name);
                    self.is_file(&child("model.safetensors"))?
                        || self.is_file(&child("model.safetensors.index.json"))?
                }
            };
            if is_directory {
                return Ok(Some(FileKind::Directory));
            }
        }
        Ok(self.is_file(&key)?.then_some(FileKind::File))
    }
}

impl Store for RemoteStore {
    type File = RemoteFile;

    fn open(&self, path: &Path) -> Result<RemoteFile> {
        let open = || {
            let key = self.place.key(path)?;
            let kept = self.found().remove(&key);
            match kept.filter(|(since, _)| since.elapsed() < KEPT) {
                Some((_, file)) => Ok(file),
                None => self.fetch(&key)?.ok_or_else(|| io::ErrorKind::NotFound.into()),
            }
        };
        open().map_err(|error| located(error, path))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.kind_of(path).map_err(|error| located(error, path))
    }

    fn list(&self, directory: &Path) -> Result<Vec<Entry>> {
        let listed = self.place.key(directory).and_then(|key| self.entries(&key));
        listed.map_err(|error| located(error, directory))
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        let look = || {
            let key = self.place.key(path)?;
            if let Some((since, file)) = self.found().get(&key)
                && since.elapsed() < KEPT
            {
                return Ok(Some(Version::new(file.version())));
            }
            let service = self.service();
            match run(async move { Object::look(&service, &key).await }).flatten() {
                Ok(meta) => Ok(Some(Version::new(version_of(&meta)))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        look().map_err(|error| located(error, path))
    }
}

pub(super) fn located(error: io::Error, path: &Path) -> Error {
    Error::from(ErrorKind::Io(error)).in_path(path)
}
