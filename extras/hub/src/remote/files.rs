//! [`Files`]: the operations that a checkpoint needs from a place of files.

use std::io;
use std::sync::Arc;

use object_store::path::Path as Key;
use safetensors_core::checkpoint::store::{FileKind, StoreEntry};

use super::RemoteFile;
use super::object::{Service, found, version_of};
use super::place::RemotePlace;
use super::runtime::run;

/// Files by key, such as `a/model.safetensors`.
pub(super) trait Files: Send + Sync {
    fn fetch(&self, key: &str) -> io::Result<Option<RemoteFile>>;

    /// `None` if a request is needed.
    fn knows(&self, key: &str) -> Option<bool>;

    /// `None` if the store cannot list.
    fn list(&self, directory: &str) -> io::Result<Option<Vec<StoreEntry>>>;

    /// Returns the present version, if the file exists. `fetched` is a recent version, to be
    /// opened.
    fn version(&self, key: &str, fetched: Option<String>) -> io::Result<Option<String>>;
}

pub(super) struct Objects {
    service: Arc<Service>,
    lists: bool,
}

impl Objects {
    pub(super) fn new(place: &RemotePlace) -> Self {
        Self { service: Arc::clone(&place.service), lists: place.lists }
    }
}

impl Files for Objects {
    fn fetch(&self, key: &str) -> io::Result<Option<RemoteFile>> {
        let service = Arc::clone(&self.service);
        let key = parse(key)?;
        found(run(RemoteFile::open(service, key)).flatten())
    }

    fn knows(&self, _: &str) -> Option<bool> {
        None
    }

    fn list(&self, directory: &str) -> io::Result<Option<Vec<StoreEntry>>> {
        if !self.lists {
            return Ok(None);
        }
        let listed = self.service.list(parse(directory)?)?;
        let entry = |key: &Key, kind| Some(StoreEntry { name: key.filename()?.to_owned(), kind });
        let files = listed.objects.iter().filter_map(|meta| entry(&meta.location, FileKind::File));
        let below = &listed.common_prefixes;
        let directories = below.iter().filter_map(|key| entry(key, FileKind::Directory));
        Ok(Some(files.chain(directories).collect()))
    }

    fn version(&self, key: &str, fetched: Option<String>) -> io::Result<Option<String>> {
        if fetched.is_some() {
            return Ok(fetched);
        }
        Ok(self.service.head(parse(key)?)?.as_ref().map(version_of))
    }
}

fn parse(key: &str) -> io::Result<Key> {
    let bad = |error: object_store::path::Error| {
        io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
    };
    Key::parse(key).map_err(bad)
}
