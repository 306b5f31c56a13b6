//! [`HubFiles`]: the files of a repository on the Hub, at one commit, read by ranges.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use safetensors_core as core;
use safetensors_core::checkpoint::store::{FileKind, StoreEntry};

use super::files::Files;
use super::hub_reads::Slots;
use super::{RemoteFile, RemoteOptions};
use crate::client::{Client, ClientOptions};
use crate::environment::{DEFAULT_ENDPOINT, Environment};
use crate::{ErrorKind, HubAddress, RepoId, Result, Revision};

/// The files of a repository. The first answer of the Hub says which commit the revision is; from
/// then on every request is for that commit, so that files of two commits never mix.
pub(super) struct HubFiles {
    client: Client,
    slots: Arc<Slots>,
    state: Mutex<State>,
}

struct State {
    repo: RepoId,
    /// What the address says, until the commit is known.
    revision: Revision,
    /// The files of the commit, once they were listed.
    names: Option<Arc<[String]>>,
}

impl HubFiles {
    /// The repository of an address. No request is made.
    pub(super) fn of(address: &HubAddress, options: &RemoteOptions) -> Result<Self> {
        let retries = u32::try_from(options.retries).unwrap_or(u32::MAX);
        let mut client = ClientOptions::new().retries(retries);
        if options.environment {
            if Environment::PROCESS.is_offline() {
                let message = "HF_HUB_OFFLINE forbids requests; open the downloaded files instead";
                return Err(core::ErrorKind::Io(io::Error::other(message)).into());
            }
        } else {
            client = client.token(None).endpoint(DEFAULT_ENDPOINT);
        }
        for (name, value) in options.pairs(None) {
            match name.to_ascii_lowercase().as_str() {
                "endpoint" => client = client.endpoint(value),
                "token" => client = client.token(Some(&value)),
                _ => {}
            }
        }
        let state = State {
            repo: address.repo().clone(),
            revision: address.revision().clone(),
            names: None,
        };
        let client = Client::new(&client)?;
        Ok(Self { client, slots: Arc::default(), state: Mutex::new(state) })
    }

    fn asked(&self) -> (RepoId, Revision) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.repo.clone(), state.revision.clone())
    }

    /// Keeps the commit that the Hub named. If another thread was told another one, that one stays.
    fn pin(&self, repo: &RepoId, commit: &Revision) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.revision.is_commit() && state.revision != *commit {
            let (before, now) = (state.revision.to_string(), commit.to_string());
            return Err(ErrorKind::Changed { what: "commit", before, now }.into());
        }
        (state.repo, state.revision) = (repo.clone(), commit.clone());
        Ok(())
    }

    fn names(&self) -> Result<Arc<[String]>> {
        let known = self.state.lock().unwrap_or_else(PoisonError::into_inner).names.clone();
        if let Some(names) = known {
            return Ok(names);
        }
        let (repo, revision) = self.asked();
        let listed = self.client.files(&repo, &revision)?;
        self.pin(&listed.repo, &listed.commit)?;
        let names: Arc<[String]> = listed.files.into();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(state.names.insert(names).clone())
    }
}

impl Files for HubFiles {
    fn fetch(&self, key: &str) -> io::Result<Option<RemoteFile>> {
        let (repo, revision) = self.asked();
        let _slot = self.slots.take();
        let file = match self.client.file(&repo, &revision, key) {
            Ok(file) => file,
            Err(error) if matches!(error.other(), Some(ErrorKind::FileNotFound)) => {
                return Ok(None);
            }
            // What the error lacks of a file must not look like one that is not there.
            Err(error) => return Err(io::Error::other(error)),
        };
        self.pin(file.repo(), file.commit()).map_err(io::Error::other)?;
        RemoteFile::of_hub(file, Arc::clone(&self.slots)).map(Some)
    }

    fn knows(&self, key: &str) -> Option<bool> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.names.as_ref().map(|names| names.iter().any(|name| name == key))
    }

    fn list(&self, directory: &str) -> io::Result<Option<Vec<StoreEntry>>> {
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

    /// The commit never changes, and so the file does not either.
    fn version(&self, _: &str, _: Option<String>) -> io::Result<Option<String>> {
        let (_, revision) = self.asked();
        Ok(revision.is_commit().then(|| revision.to_string()))
    }
}
