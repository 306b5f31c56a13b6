//! The cache of the Hub, which Python's `huggingface_hub` shares.
//!
//! ```text
//! <cache>/models--OWNER--NAME/refs/<revision>               the commit that a branch or tag was
//!                            /blobs/<etag>                  the content of a file
//!                            /blobs/<etag>.<id>.incomplete  a download that has not ended
//!                            /snapshots/<commit>/<path>     a relative link to the blob
//! <cache>/.locks/models--OWNER--NAME/<etag>.lock            held while a blob is downloaded
//! ```
//!
//! Data sets, spaces and kernels have `datasets--`, `spaces--` and `kernels--` instead of
//! `models--`. An ETag that is no digest is followed by a digest of the commit, the path and the
//! length, because two files may share the ETag. Where the system has no links, a snapshot has the
//! files themselves. Newer versions of Python's library may keep a blob in a store for all models,
//! and link to it; such links are followed. Only the layout above is written.
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
pub(crate) use incomplete::{Incomplete, progress, resumable_bytes};
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

use safetensors_core::io::beside;

use crate::environment::Environment;
use crate::error::{Error, Result, is_absent};
use crate::repo::{RepoId, Revision};

/// A directory with the caches of repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Uses the cache at this path. It need not exist.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Uses the cache that Python uses too: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or
    /// `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoHome`](crate::ErrorKind::NoHome) if none of them is known.
    pub fn from_environment() -> Result<Self> {
        Environment::PROCESS.cache().map(Self::at)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the part for one repository. It need not exist.
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

    /// Returns the repositories that the cache has, sorted by name. An absent cache has none.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io) if the directories cannot be read.
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
    /// A directory of the user that has the files, instead of snapshots with links to blobs.
    local: Option<PathBuf>,
    /// Blobs of a cache, which are copied to a directory of the user instead of downloaded.
    shared: Option<PathBuf>,
}

/// The most bytes of a reference, which has the name of a commit.
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

    /// Returns the commit of a revision when it was last downloaded. A commit is itself. `None` if
    /// the revision was never downloaded.
    ///
    /// # Errors
    ///
    /// [`Io`](safetensors_core::ErrorKind::Io) if the reference cannot be read.
    pub(crate) fn commit(&self, revision: &Revision) -> Result<Option<Revision>> {
        if revision.is_commit() {
            return Ok(Some(revision.clone()));
        }
        let Some(text) = beside::read(&self.dir.join("refs"), revision.as_str(), LONGEST_REF)?
        else {
            return Ok(None);
        };
        let commit = Revision::parse(String::from_utf8_lossy(&text).trim()).ok();
        Ok(commit.filter(Revision::is_commit))
    }

    /// Returns the directory of a commit's files. It need not exist.
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

    /// Returns the path of a file in a snapshot. Its name has been checked.
    pub(crate) fn pointer(&self, commit: &Revision, name: &str) -> PathBuf {
        joined(&self.snapshot_dir(commit), name)
    }

    fn reference(&self, revision: &Revision) -> PathBuf {
        joined(&self.dir.join("refs"), revision.as_str())
    }

    /// Remembers which commit a revision is now.
    pub(crate) fn set_commit(&self, revision: &Revision, commit: &Revision) -> Result<()> {
        if revision.is_commit() || self.commit(revision)?.as_ref() == Some(commit) {
            return Ok(());
        }
        self.write(&self.reference(revision), commit.as_str())
    }

    /// Writes a small file in one step.
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

/// Creates the directory for a file.
#[cfg(feature = "download")]
fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Returns a path below a directory, from a name with `/`; the directory itself for an empty one.
pub(crate) fn joined(dir: &Path, name: &str) -> PathBuf {
    let mut path = dir.to_owned();
    path.extend(name.split('/').filter(|part| !part.is_empty()));
    path
}

/// Lists the names in a directory, in any order. An absent one has none. Names that are not UTF-8
/// are skipped.
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
