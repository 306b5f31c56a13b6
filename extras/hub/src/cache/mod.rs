//! The cache of the Hub, shared with Python's `huggingface_hub`.
//!
//! ```text
//! <cache>/models--OWNER--NAME/refs/<revision>               the commit that a branch or tag was
//!                            /blobs/<etag>                  the content of a file
//!                            /blobs/<etag>.<id>.incomplete  a download that has not ended
//!                            /snapshots/<commit>/<path>     a relative link to the blob
//! <cache>/.locks/models--OWNER--NAME/<etag>.lock            held while a blob is downloaded
//! ```
//!
//! Other kinds have `datasets--`, `spaces--` or `kernels--`. An ETag that is not a digest is
//! followed by a digest of commit, path and length, because two files may share it. Without links
//! in the system, snapshots have the files. Links to a store for all models, which newer Python
//! versions make, are read, never written.
//!
//! ```
//! use safetensors_hub::cache::Cache;
//!
//! # let dir = tempfile::tempdir()?;
//! let cache = Cache::at(dir.path()); // or `Cache::from_environment()`
//! for repo in cache.repos()? {
//!     for snapshot in repo.snapshots()? {
//!         println!("{} at {}: {} files", repo.id(), snapshot.commit, snapshot.files.len());
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "download")]
mod incomplete;
#[cfg(feature = "download")]
mod link;
#[cfg(feature = "download")]
mod local;
#[cfg(feature = "download")]
mod lock;
#[cfg(feature = "download")]
mod remove;
mod scan;
#[cfg(feature = "download")]
mod space;
#[cfg(feature = "download")]
pub(crate) mod unique;
#[cfg(feature = "download")]
mod verify;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "download")]
pub(crate) use incomplete::{Incomplete, progress, resumable_bytes, touch};
#[cfg(feature = "download")]
pub(crate) use link::link;
#[cfg(feature = "download")]
pub(crate) use local::is_blob;
#[cfg(feature = "download")]
pub(crate) use lock::Lock;
pub use scan::CachedSnapshot;
#[cfg(feature = "download")]
pub(crate) use space::free_bytes;
#[cfg(feature = "download")]
pub use verify::Verification;

use safetensors_core::io::next_to;

use crate::environment::Environment;
use crate::error::{Error, Result, is_absent};
use crate::repo::{RepoId, Revision};

/// A directory with the caches of repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Uses the cache at this path, which need not exist.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Uses Python's cache: `HF_HUB_CACHE`, `hub` in `HF_HOME`, or `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoHome`](crate::ErrorKind::NoHome) if all are unknown.
    pub fn from_environment() -> Result<Self> {
        Environment::PROCESS.cache().map(Self::at)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn repo(&self, id: &RepoId) -> CachedRepo {
        let folder = id.folder();
        CachedRepo {
            dir: self.dir.join(&folder),
            locks: self.dir.join(".locks").join(folder),
            id: id.clone(),
            local: None,
            shared: None,
        }
    }

    /// Returns the cached repositories, sorted by name. An absent cache has none.
    pub fn repos(&self) -> Result<Vec<CachedRepo>> {
        let mut ids: Vec<_> =
            names(&self.dir)?.iter().filter_map(|name| RepoId::of_folder(name)).collect();
        ids.sort();
        Ok(ids.iter().map(|id| self.repo(id)).collect())
    }
}

/// The cached files of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    id: RepoId,
    dir: PathBuf,
    locks: PathBuf,
    /// A user's directory, which replaces snapshots and blobs.
    local: Option<PathBuf>,
    /// Blobs to copy to a user's directory instead of downloads.
    shared: Option<PathBuf>,
}

const LONGEST_REF: u64 = 1000;

impl CachedRepo {
    /// Returns the repository.
    pub fn id(&self) -> &RepoId {
        &self.id
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Of the last download. A commit is itself.
    pub(crate) fn commit(&self, revision: &Revision) -> Result<Option<Revision>> {
        if revision.is_commit() {
            return Ok(Some(revision.clone()));
        }
        let Some(text) = next_to::read(&self.dir.join("refs"), revision.as_str(), LONGEST_REF)?
        else {
            return Ok(None);
        };
        let commit = Revision::parse(String::from_utf8_lossy(&text).trim()).ok();
        Ok(commit.filter(Revision::is_commit))
    }

    pub(crate) fn snapshot_dir(&self, commit: &Revision) -> PathBuf {
        let snapshot = || self.dir.join("snapshots").join(commit.as_str());
        self.local.clone().unwrap_or_else(snapshot)
    }

    fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }
}

#[cfg(feature = "download")]
impl CachedRepo {
    pub(crate) fn blob(&self, etag: &crate::etag::Etag) -> PathBuf {
        self.blobs().join(etag.as_str())
    }

    pub(crate) fn lock_path(&self, etag: &crate::etag::Etag) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    pub(crate) fn pointer(&self, commit: &Revision, name: &str) -> PathBuf {
        joined(&self.snapshot_dir(commit), name)
    }

    fn reference(&self, revision: &Revision) -> PathBuf {
        joined(&self.dir.join("refs"), revision.as_str())
    }

    pub(crate) fn set_commit(&self, revision: &Revision, commit: &Revision) -> Result<()> {
        if revision.is_commit() || self.commit(revision)?.as_ref() == Some(commit) {
            return Ok(());
        }
        self.write(&self.reference(revision), commit.as_str())
    }

    fn write(&self, path: &Path, text: &str) -> Result<()> {
        self.check_links(path)?;
        // It is written elsewhere first: every file below `refs` is read as a reference.
        let temporary = self.dir.join(unique::name("tmp_", ""));
        let write = || {
            create_parent(&temporary)?;
            create_parent(path)?;
            fs::write(&temporary, text)?;
            fs::rename(&temporary, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io(error, path)
        })
    }
}

#[cfg(feature = "download")]
fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

pub(crate) fn joined(dir: &Path, name: &str) -> PathBuf {
    let mut path = dir.to_owned();
    path.extend(name.split('/').filter(|part| !part.is_empty()));
    path
}

/// In any order, without names that are not UTF-8. An absent directory has none.
fn names(dir: &Path) -> Result<Vec<String>> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    match list() {
        Ok(names) => Ok(names),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(Error::io(error, dir)),
    }
}
