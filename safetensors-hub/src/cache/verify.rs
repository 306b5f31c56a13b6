//! Whether the blobs of a cache are intact.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::{CachedRepo, names};
use crate::error::{Error, Result};
use crate::etag::Etag;

/// A blob whose content is not what its name says.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedBlob {
    /// The path of the blob. Remove it to have the next download replace it.
    pub path: PathBuf,
    /// What is wrong: [`ErrorKind::WrongDigest`](crate::ErrorKind::WrongDigest), or an error of the
    /// system.
    pub error: Error,
}

impl CachedRepo {
    /// Reads every blob and compares its digest with its name: the SHA-256 of a large file, git's
    /// SHA-1 of a small one. Returns those that are damaged.
    ///
    /// A name of 64 hex digits counts as a SHA-256. A server that is not the Hub may use such ETags
    /// for something else; then intact blobs count as damaged.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the blobs cannot be listed.
    pub fn verify(&self) -> Result<Vec<DamagedBlob>> {
        let (blobs, stop) = (self.blobs(), AtomicBool::new(false));
        let mut names = names(&blobs)?;
        names.retain(|name| !name.ends_with(".incomplete"));
        names.sort();
        let check = |name: String| {
            let path = blobs.join(&name);
            let error = Etag::of_blob(&name)?.check(&path, None, &stop).err()?;
            Some(DamagedBlob { error: error.in_repo(&self.id).in_file(path.display()), path })
        };
        Ok(names.into_iter().filter_map(check).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::cache::Cache;
    use crate::error::ErrorKind;

    #[test]
    fn damaged_blobs_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = dir.path().join("models--a--b/blobs");
        fs::create_dir_all(&blobs).unwrap();
        let git = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"; // of "abc"
        for (name, content) in [(git, "abc"), ("unknown", "x"), ("e.00000000.incomplete", "xy")] {
            fs::write(blobs.join(name), content).unwrap();
        }
        let repo = Cache::at(dir.path()).repos().unwrap().remove(0);
        assert_eq!(repo.verify().unwrap().len(), 0);
        fs::write(blobs.join(git), "abd").unwrap();
        let damaged = repo.verify().unwrap();
        assert!(damaged[0].path.ends_with(git) && damaged.len() == 1);
        assert!(matches!(damaged[0].error.kind(), ErrorKind::WrongDigest { .. }));
        assert_eq!(damaged[0].error.repo(), Some("a/b"));
    }
}
