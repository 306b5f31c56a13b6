//! Removes unneeded files of a cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{CachedRepo, CachedSnapshot, joined};
use crate::error::{Error, Result, is_absent};

impl CachedRepo {
    /// Removes the repository from the cache, or with `is_dry_run` nothing. Returns the freed
    /// bytes.
    pub fn remove(&self, is_dry_run: bool) -> Result<Option<u64>> {
        let bytes = self.byte_len()?;
        if !is_dry_run {
            // The branches go first: none may lead to a snapshot that is not complete.
            remove(&self.dir.join("refs"))?;
            remove(&self.dir)?;
            remove(&self.locks)?;
        }
        Ok(Some(bytes))
    }

    /// Removes snapshots without a branch or tag, and their blobs, or with `is_dry_run` nothing.
    /// Returns the freed bytes; `None` if there is no such snapshot.
    ///
    /// A branch or tag keeps its commit of the last download. Older commits and commits asked for
    /// by their digits go. Unfinished downloads stay.
    pub fn prune(&self, is_dry_run: bool) -> Result<Option<u64>> {
        let (old, current): (Vec<_>, Vec<_>) =
            self.snapshots()?.into_iter().partition(|snapshot| snapshot.revisions.is_empty());
        if old.is_empty() {
            return Ok(None);
        }
        let kept: BTreeSet<_> = current.iter().flat_map(contents).collect();
        let blobs = fs::canonicalize(self.blobs()).ok();
        // A link that leads elsewhere, such as to a store of all models, frees nothing.
        let mut freed: BTreeSet<_> = old.iter().flat_map(contents).collect();
        freed.retain(|path| {
            let is_in = |dir: &Path| fs::canonicalize(dir).is_ok_and(|dir| path.starts_with(dir));
            let is_own = old.iter().any(|snapshot| is_in(&snapshot.dir));
            !kept.contains(path) && (is_own || path.parent() == blobs.as_deref())
        });
        let bytes =
            freed.iter().filter_map(|path| fs::metadata(path).ok()).map(|it| it.len()).sum();
        if !is_dry_run {
            old.iter().try_for_each(|snapshot| remove(&snapshot.dir))?;
            // A download may have made a snapshot of these blobs since.
            let kept: BTreeSet<_> = self.snapshots()?.iter().flat_map(contents).collect();
            freed.iter().filter(|path| !kept.contains(*path)).try_for_each(|path| remove(path))?;
        }
        Ok(Some(bytes))
    }
}

fn contents(snapshot: &CachedSnapshot) -> impl Iterator<Item = PathBuf> {
    let files = snapshot.files.iter().map(|name| joined(&snapshot.dir, name));
    files.filter_map(|path| fs::canonicalize(path).ok())
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if !is_absent(&error) => Err(Error::io(error, path)),
        _ => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cache::Cache;

    fn cache(dir: &Path) -> CachedRepo {
        let repo = dir.join("cache/models--a--b");
        let commits = ["0".repeat(40), "1".repeat(40)];
        for folder in ["refs", "blobs"] {
            fs::create_dir_all(repo.join(folder)).unwrap();
        }
        fs::write(repo.join("refs/main"), &commits[1]).unwrap();
        fs::write(dir.join("elsewhere"), "not of the cache").unwrap();
        for (name, content) in [("old", "12"), ("new", "123"), ("both", "1234")] {
            fs::write(repo.join("blobs").join(name), content).unwrap();
        }
        fs::write(repo.join("blobs/x.01234567.incomplete"), "1").unwrap();
        for (commit, blob) in commits.iter().zip(["old", "new"]) {
            let snapshot = repo.join("snapshots").join(commit).join("x");
            fs::create_dir_all(&snapshot).unwrap();
            symlink(repo.join("blobs").join(blob), snapshot.join("own")).unwrap();
            symlink(repo.join("blobs/both"), snapshot.join("both")).unwrap();
        }
        let first = repo.join("snapshots").join(&commits[0]);
        symlink(dir.join("elsewhere"), first.join("elsewhere")).unwrap();
        fs::write(first.join("copy"), "12345").unwrap();
        Cache::at(fs::canonicalize(dir).unwrap().join("cache")).repos().unwrap().remove(0)
    }

    fn blobs(repo: &CachedRepo) -> Vec<String> {
        let mut names = super::super::names(&repo.blobs()).unwrap();
        names.sort();
        names
    }

    #[test]
    fn pruning_keeps_snapshots_of_branches_and_foreign_files() {
        let dir = tempfile::tempdir().unwrap();
        let repo = cache(dir.path());
        let all = ["both", "new", "old", "x.01234567.incomplete"];
        assert_eq!(repo.prune(true).unwrap(), Some(7));
        assert_eq!(
            (repo.snapshots().unwrap().len(), blobs(&repo)),
            (2, all.map(str::to_owned).into())
        );
        assert_eq!(repo.prune(false).unwrap(), Some(7));
        let snapshots = repo.snapshots().unwrap();
        assert_eq!(
            (snapshots.len(), &*snapshots[0].files),
            (1, &["x/both".into(), "x/own".into()][..])
        );
        assert_eq!(blobs(&repo), ["both", "new", "x.01234567.incomplete"]);
        assert!(dir.path().join("elsewhere").is_file());
        assert_eq!(repo.prune(false).unwrap(), None);
    }

    #[test]
    fn a_repository_is_removed_with_its_locks_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let repo = cache(dir.path());
        fs::create_dir_all(&repo.locks).unwrap();
        fs::write(repo.locks.join("x.lock"), "").unwrap();
        let other = dir.path().join("cache/models--a--c");
        fs::create_dir(&other).unwrap();
        assert_eq!(repo.remove(true).unwrap(), Some(15));
        assert!(repo.dir.is_dir() && repo.locks.is_dir());
        assert_eq!(repo.remove(false).unwrap(), Some(15));
        assert!(!repo.dir.exists() && !repo.locks.exists() && other.is_dir());
        assert!(dir.path().join("elsewhere").is_file());
        // Another process was faster.
        assert_eq!(repo.remove(false).unwrap(), Some(0));
        assert_eq!(repo.prune(false).unwrap(), None);
    }
}
