//! [`RemoteStore`]: the files of checkpoints in a remote store.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry, Version};
use safetensors_core::lock;
use safetensors_core::{Error, Result};

use super::files::{Files, Objects};
use super::hub::HubFiles;
use super::place::RemotePlace;
use super::{AddressKind, RemoteFile, RemoteOptions, local_path};
use crate::HubAddress;

/// For a file fetched to learn whether it exists, until it is opened.
const KEPT: Duration = Duration::from_secs(20);

/// Tried in a directory that cannot be listed.
const STANDARD: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// The files of a bucket, a web server, a repository on the Hub, or the local disk.
///
/// A test for a file fetches its first bytes, which opening uses, so both are one request.
///
/// ```
/// use safetensors_core::checkpoint::store::Store;
/// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView};
/// use safetensors_hub::remote::{self, RemoteOptions, RemoteStore};
///
/// # let bias = TensorView::from_slice(&[2], &[0.5_f32, 1.5])?;
/// # let file = "memory:///stored/a.safetensors";
/// # RemoteOptions::new().save(file, [("bias", bias)], &SaveOptions::new())?;
/// let store = RemoteStore::new("memory:///stored", &RemoteOptions::new())?;
/// for entry in store.list(&store.path())? {
///     let path = store.path().join(entry.name);
///     println!("{} has {} bytes", path.display(), {
///         use safetensors_core::ReadAt;
///         store.open(&path)?.byte_len()
///     });
/// }
/// let path = store.path();
/// assert_eq!(Checkpoint::open_in(store, path, &Limits::default())?.len(), 1);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub struct RemoteStore {
    path: PathBuf,
    /// `None` for the local disk.
    remote: Option<Remote>,
}

struct Remote {
    files: Box<dyn Files>,
    root: String,
    /// Files fetched to learn whether they exist, until asked for again.
    fetched: Mutex<HashMap<String, (Instant, Option<RemoteFile>)>>,
}

impl RemoteStore {
    /// Connects to the store of an address, without a request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io) for a malformed address or option.
    pub fn new(address: &str, options: &RemoteOptions) -> Result<Self> {
        if let Some(path) = local_path(address)? {
            return Ok(Self { path, remote: None });
        }
        if AddressKind::detect(address) != Some(AddressKind::Hub) {
            return Ok(Self::at(&RemotePlace::new(address, options)?));
        }
        let address = HubAddress::parse(address)?;
        let root = match address.path() {
            "" => address.to_string(),
            path => address.to_string().trim_end_matches(path).to_owned(),
        };
        Ok(Self::with(Box::new(HubFiles::new(&address, options)?), root, address.to_string()))
    }

    pub(super) fn at(place: &RemotePlace) -> Self {
        Self::with(Box::new(Objects::new(place)), place.root.clone(), place.shown.clone())
    }

    fn with(files: Box<dyn Files>, root: String, path: String) -> Self {
        let remote = Remote { files, root, fetched: Mutex::default() };
        Self { path: path.into(), remote: Some(remote) }
    }

    /// Returns the path of the address, without credentials. For `file:///path` it is the path of
    /// the disk.
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

impl Remote {
    fn key(&self, path: &Path) -> io::Result<String> {
        let foreign = || {
            let message = format!("the path is not below {}", self.root);
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        let mut key = String::new();
        for part in path.strip_prefix(&self.root).map_err(|_| foreign())?.components() {
            let Component::Normal(part) = part else { return Err(foreign()) };
            if !key.is_empty() {
                key.push('/');
            }
            key.push_str(part.to_str().ok_or_else(foreign)?);
        }
        Ok(key)
    }

    fn is_file(&self, key: &str) -> io::Result<bool> {
        if let Some(is_file) = self.files.knows(key) {
            return Ok(is_file);
        }
        match self.take_fetched(key) {
            // A third question asks whether there is a file by now.
            Some(None) => return Ok(false),
            Some(file) => self.keep(key, file),
            None => {
                let file = self.files.fetch(key)?;
                self.keep(key, file);
            }
        }
        Ok(lock(&self.fetched).get(key).is_some_and(|(_, file)| file.is_some()))
    }

    fn keep(&self, key: &str, file: Option<RemoteFile>) {
        lock(&self.fetched).insert(key.to_owned(), (Instant::now(), file));
    }

    fn take_fetched(&self, key: &str) -> Option<Option<RemoteFile>> {
        let mut fetched = lock(&self.fetched);
        fetched.retain(|_, (since, _)| since.elapsed() < KEPT);
        fetched.remove(key).map(|(_, file)| file)
    }

    fn kind_of(&self, path: &Path) -> io::Result<Option<FileKind>> {
        let key = self.key(path)?;
        let is_named = CheckpointPath::from_name(path).is_some()
            || path.extension().is_some_and(|extension| extension == "json");
        if is_named {
            return match self.is_file(&key) {
                Err(error) if is_refused(&error) && self.has_index_instead(&key)? => Ok(None),
                is_file => Ok(is_file?.then_some(FileKind::File)),
            };
        }
        // The name belongs to a directory, unless it is empty.
        let mut refused = None;
        let entries = match self.files.list(&key) {
            Err(error) if is_refused(&error) => {
                refused = Some(error);
                None
            }
            entries => entries?,
        };
        let candidates = match entries {
            Some(entries) if entries.is_empty() => [].as_slice(),
            Some(_) => return Ok(Some(FileKind::Directory)),
            None => &STANDARD,
        };
        for name in candidates {
            match self.is_file(&child(&key, name)) {
                Err(error) if is_refused(&error) => refused = Some(error),
                is_file => {
                    if is_file? {
                        return Ok(Some(FileKind::Directory));
                    }
                }
            }
        }
        match (self.is_file(&key)?, refused) {
            (true, _) => Ok(Some(FileKind::File)),
            (false, None) => Ok(None),
            (false, Some(refused)) => Err(refused),
        }
    }

    /// A refused `model.safetensors` need not exist if there is an index.
    fn has_index_instead(&self, key: &str) -> io::Result<bool> {
        let [file, index] = STANDARD;
        let Some(directory) = key.strip_suffix(file) else { return Ok(false) };
        let directory = directory.trim_end_matches('/');
        if key != child(directory, file) || matches!(self.files.list(directory), Ok(Some(_))) {
            return Ok(false);
        }
        match self.is_file(&child(directory, index)) {
            Err(error) if is_refused(&error) => Ok(false),
            is_file => is_file,
        }
    }

    fn open(&self, path: &Path) -> io::Result<RemoteFile> {
        let key = self.key(path)?;
        match self.take_fetched(&key) {
            Some(Some(file)) => Ok(file),
            _ => self.files.fetch(&key)?.ok_or_else(not_found),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<StoreEntry>> {
        let listed = self.key(directory).and_then(|key| self.files.list(&key));
        listed.map(Option::unwrap_or_default)
    }

    fn version(&self, path: &Path) -> io::Result<Option<Version>> {
        let key = self.key(path)?;
        // The kept file will be opened, so its version counts.
        let fetched = lock(&self.fetched);
        let kept = fetched.get(&key).and_then(|(_, file)| file.as_ref());
        let kept = kept.map(RemoteFile::version);
        drop(fetched);
        Ok(self.files.version(&key, kept)?.map(Version::new))
    }
}

fn child(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    }
}

/// A store may also refuse missing files, so a search continues, and has this error only if nothing
/// is found.
fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for RemoteStore {
    type File = RemoteFile;

    fn open(&self, path: &Path) -> Result<RemoteFile> {
        match &self.remote {
            None => LocalStore.open(path).map(RemoteFile::on_disk),
            Some(remote) => remote.open(path).map_err(|error| Error::io(error, path)),
        }
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        match &self.remote {
            None => LocalStore.kind(path),
            Some(remote) => remote.kind_of(path).map_err(|error| Error::io(error, path)),
        }
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        match &self.remote {
            None => LocalStore.list(directory),
            Some(remote) => remote.list(directory).map_err(|error| Error::io(error, directory)),
        }
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        match &self.remote {
            None => LocalStore.version(path),
            Some(remote) => remote.version(path).map_err(|error| Error::io(error, path)),
        }
    }
}

fn not_found() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no such file")
}
