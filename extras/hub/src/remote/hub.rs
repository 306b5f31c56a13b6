//! [`HubFiles`]: a repository on the Hub at one commit: cached files, and others by ranges.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use safetensors_core::{ReadAt, lock};

use super::files::Files;
use super::hub_reads::Slots;
use super::{RemoteFile, RemoteOptions};
use crate::cache::{Cache, CachedRepo};
use crate::client::{BucketEntry, Client, ClientOptions, HubFile};
use crate::environment::Environment;
use crate::repo::check_file_name;
use crate::{ErrorKind, HubAddress, RepoId, Result, Revision};

/// The first answer pins the commit, so files of two commits never mix. A bucket has no commits:
/// each file keeps its opened version.
pub(super) struct HubFiles {
    /// `None` without permission for requests.
    client: Option<Client>,
    /// `None` without a cache, as for a bucket.
    cached: Option<CachedRepo>,
    slots: Arc<Slots>,
    state: Mutex<RepoState>,
}

struct RepoState {
    repo: RepoId,
    revision: Revision,
    names: Option<Arc<[String]>>,
}

impl HubFiles {
    pub(super) fn new(address: &HubAddress, options: &RemoteOptions) -> Result<Self> {
        let repo = address.repo().clone();
        let cached = match Cache::from_environment() {
            Ok(cache) if !repo.is_bucket() => Some(cache.repo(&repo)),
            _ => None,
        };
        let (client, revision) = if Environment::PROCESS.is_offline() {
            (None, find_offline(&Cache::from_environment()?, address)?)
        } else {
            (Some(client(options)?), address.revision().clone())
        };
        Ok(Self {
            client,
            cached,
            slots: Arc::default(),
            state: Mutex::new(RepoState { repo, revision, names: None }),
        })
    }

    fn cached(
        &self,
        commit: &Revision,
        key: &str,
        byte_len: Option<u64>,
    ) -> io::Result<Option<RemoteFile>> {
        let Some(cached) = self.cached.as_ref().filter(|_| commit.is_commit()) else {
            return Ok(None);
        };
        let path = cached.pointer(commit, key);
        if check_file_name(key).is_err() || !path.is_file() {
            return Ok(None);
        }
        match LocalStore.open(&path) {
            Ok(file) if byte_len.is_some_and(|len| len != file.byte_len()) => Ok(None),
            Ok(file) => Ok(Some(RemoteFile::on_disk(file))),
            Err(error) if self.client.is_none() => Err(io::Error::other(error)),
            // Another user's, for example.
            Err(_) => Ok(None),
        }
    }

    fn asked(&self) -> (RepoId, Revision) {
        let state = lock(&self.state);
        (state.repo.clone(), state.revision.clone())
    }

    /// The first commit that a thread gets stays.
    fn pin(&self, repo: &RepoId, commit: &Revision) -> Result<()> {
        let mut state = lock(&self.state);
        state.revision.check_commit(commit)?;
        (state.repo, state.revision) = (repo.clone(), commit.clone());
        Ok(())
    }

    /// `None` if the file does not exist, or no request may be made.
    fn ask(&self, key: &str) -> io::Result<Option<HubFile>> {
        let Some(client) = &self.client else { return Ok(None) };
        let (repo, revision) = self.asked();
        match client.file(&repo, &revision, key) {
            Ok(file) => Ok(Some(file)),
            Err(error) if matches!(error.other(), Some(ErrorKind::FileNotFound)) => Ok(None),
            // The error must not look like a missing file.
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn names(&self) -> Result<Arc<[String]>> {
        let known = lock(&self.state).names.clone();
        if let Some(names) = known {
            return Ok(names);
        }
        let (repo, revision) = self.asked();
        let names = match (&self.client, &self.cached) {
            (Some(client), _) => {
                let listed = client.files(&repo, &revision)?;
                self.pin(&listed.repo, &listed.commit)?;
                listed.files
            }
            (None, Some(cached)) => cached.files(&revision)?,
            (None, None) => Vec::new(),
        };
        let mut state = lock(&self.state);
        Ok(state.names.insert(names.into()).clone())
    }
}

fn client(options: &RemoteOptions) -> Result<Client> {
    let retries = u32::try_from(options.retries).unwrap_or(u32::MAX);
    let mut client = ClientOptions::new().retries(retries);
    for (name, value) in options.pairs(None) {
        match name.to_ascii_lowercase().as_str() {
            "endpoint" => client = client.endpoint(value),
            "token" => client = client.token(Some(&value)),
            _ => {}
        }
    }
    Client::new(&client)
}

fn find_offline(cache: &Cache, address: &HubAddress) -> Result<Revision> {
    let missing = |what: String| {
        let reason = "no request may be made; unset HF_HUB_OFFLINE to read it from the Hub";
        let error = ErrorKind::NotInCache { what, cache: cache.dir().into(), reason };
        safetensors_core::Error::from(error).in_file(address)
    };
    let repo = address.repo();
    let revision = address.revision();
    if repo.is_bucket() {
        return Err(missing(repo.to_string()));
    }
    let cached = cache.repo(repo);
    let commit = cached.commit(revision)?;
    let commit = commit.filter(|commit| cached.snapshot_dir(commit).is_dir());
    let commit = commit.ok_or_else(|| missing(format!("revision {revision}")))?;
    if cached.pointer(&commit, address.path()).exists() {
        Ok(commit)
    } else {
        Err(missing(address.path().to_owned()))
    }
}

impl Files for HubFiles {
    fn fetch(&self, key: &str) -> io::Result<Option<RemoteFile>> {
        if let Some(file) = self.cached(&self.asked().1, key, None)? {
            return Ok(Some(file));
        }
        let _slot = self.slots.take(&AtomicBool::new(false)).map_err(io::Error::other)?;
        let Some(file) = self.ask(key)? else { return Ok(None) };
        self.pin(file.repo(), file.commit()).map_err(io::Error::other)?;
        match self.cached(file.commit(), key, Some(file.byte_len()))? {
            Some(file) => Ok(Some(file)),
            None => RemoteFile::of_hub(file, Arc::clone(&self.slots)).map(Some),
        }
    }

    fn knows(&self, key: &str) -> Option<bool> {
        let state = lock(&self.state);
        state.names.as_ref().map(|names| names.iter().any(|name| name == key))
    }

    fn list(&self, directory: &str) -> io::Result<Option<Vec<StoreEntry>>> {
        let (repo, _) = self.asked();
        if let Some(client) = self.client.as_ref().filter(|_| repo.is_bucket()) {
            let listed = client.bucket_entries(&repo, directory).map_err(io::Error::other)?;
            return Ok(Some(listed.into_iter().filter_map(entry).collect()));
        }
        let names = self.names().map_err(io::Error::other)?;
        let mut entries = BTreeMap::new();
        for name in &*names {
            let below = match directory {
                "" => Some(name.as_str()),
                _ => name.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')),
            };
            let Some(below) = below else { continue };
            match below.split_once('/') {
                Some((child, _)) => entries.insert(child, FileKind::Directory),
                None => entries.insert(below, FileKind::File),
            };
        }
        let entry = |(name, kind): (&str, FileKind)| StoreEntry { name: name.to_owned(), kind };
        Ok(Some(entries.into_iter().map(entry).collect()))
    }

    /// Files of a commit never change.
    fn version(&self, key: &str, fetched: Option<String>) -> io::Result<Option<String>> {
        let (repo, revision) = self.asked();
        if !repo.is_bucket() {
            return Ok(revision.is_commit().then(|| revision.to_string()));
        }
        match fetched {
            None => Ok(self.ask(key)?.map(|file| file.etag().to_owned())),
            fetched => Ok(fetched),
        }
    }
}

fn entry(listed: BucketEntry) -> Option<StoreEntry> {
    let kind = match listed.kind.as_str() {
        "file" => FileKind::File,
        "directory" => FileKind::Directory,
        _ => return None,
    };
    let name = listed.path.rsplit('/').next().unwrap_or_default().to_owned();
    Some(StoreEntry { name, kind })
}
