//! Lists the content of a cache.

use std::fs;
use std::path::{Path, PathBuf};

#[cfg(feature = "download")]
use super::local::RECORDS;
use super::{CachedRepo, names};
use crate::error::Result;
use crate::repo::{Revision, is_hex};

/// The cached files of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// The commit: 40 hex digits.
    pub commit: Revision,
    /// The sorted branches and tags that were this commit at their last download.
    pub revisions: Vec<Revision>,
    /// The directory of its files.
    pub dir: PathBuf,
    /// The sorted names of the files, without links to missing blobs.
    pub files: Vec<String>,
}

impl CachedRepo {
    /// Returns the snapshots, sorted by commit.
    pub fn snapshots(&self) -> Result<Vec<CachedSnapshot>> {
        let revisions = self.revisions()?;
        let mut snapshots = Vec::new();
        let commits = names(&self.dir.join("snapshots"))?.into_iter();
        for commit in commits.filter_map(|name| Revision::parse(&name).ok()) {
            let dir = self.snapshot_dir(&commit);
            let files = files_below(&dir)?;
            let of_commit = revisions.iter().filter(|(_, of)| *of == commit);
            let revisions = of_commit.map(|(revision, _)| revision.clone()).collect();
            snapshots.push(CachedSnapshot { commit, revisions, dir, files });
        }
        snapshots.sort_by(|a, b| a.commit.cmp(&b.commit));
        Ok(snapshots)
    }

    #[cfg(feature = "download")]
    pub(crate) fn files(&self, commit: &Revision) -> Result<Vec<String>> {
        let mut files = match &self.local {
            // Anything else may be in the directory of the user.
            Some(dir) => {
                let records = files_below(&super::joined(dir, RECORDS))?.into_iter();
                records.filter_map(|it| Some(it.strip_suffix(".metadata")?.to_owned())).collect()
            }
            None => files_below(&self.snapshot_dir(commit))?,
        };
        files.retain(|name| self.has(commit, name));
        Ok(files)
    }

    /// Returns the sorted branches and tags without a snapshot, with their commits. They cannot be
    /// used offline until the next download.
    pub fn revisions_without_snapshot(&self) -> Result<Vec<(Revision, Revision)>> {
        let mut revisions = self.revisions()?;
        revisions.retain(|(_, commit)| !self.snapshot_dir(commit).is_dir());
        Ok(revisions)
    }

    /// Sorted, with the commits at their last download.
    fn revisions(&self) -> Result<Vec<(Revision, Revision)>> {
        let mut revisions = Vec::new();
        for name in files_below(&self.dir.join("refs"))? {
            // One that cannot be read must not hide the others.
            if let Ok(revision) = Revision::parse(&name)
                && let Ok(Some(commit)) = self.commit(&revision)
            {
                revisions.push((revision, commit));
            }
        }
        Ok(revisions)
    }

    /// Returns the bytes of all blobs, unfinished downloads, and files in snapshots without links.
    pub fn byte_len(&self) -> Result<u64> {
        let blobs = self.blobs();
        let mut paths: Vec<_> = names(&blobs)?.iter().map(|name| blobs.join(name)).collect();
        for snapshot in self.snapshots()? {
            let own = snapshot.files.iter().map(|file| super::joined(&snapshot.dir, file));
            paths.extend(own.filter(|path| !path.is_symlink()));
        }
        // A file that is removed in between has no bytes.
        Ok(paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum())
    }
}

/// Sorted names with `/`. Links to files count.
fn files_below(dir: &Path) -> Result<Vec<String>> {
    below(dir, Path::is_file)
}

#[cfg(feature = "download")]
pub(super) fn broken_links_below(dir: &Path) -> Result<Vec<String>> {
    below(dir, |path| path.is_symlink() && fs::metadata(path).is_err())
}

fn below(dir: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut open = vec![String::new()];
    while let Some(folder) = open.pop() {
        for name in names(&super::joined(dir, &folder))? {
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let path = super::joined(dir, &name);
            // A link to a directory could lead around in a circle.
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => open.push(name),
                _ if is_wanted(&path) && !is_temporary(&name) => files.push(name),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A killed process may have left the file while it made a link: see `link`.
fn is_temporary(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    let digits = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".tmp"));
    digits.is_some_and(|digits| is_hex(digits, 8))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cache::Cache;

    #[test]
    fn a_cache_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("models--a--b");
        let commit = "0123456789012345678901234567890123456789";
        let git = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"; // of "abc"
        for folder in ["refs/refs/pr", "blobs", &format!("snapshots/{commit}/x")] {
            fs::create_dir_all(repo.join(folder)).unwrap();
        }
        fs::create_dir_all(dir.path().join("datasets--a--c")).unwrap();
        fs::write(repo.join("refs/main"), commit).unwrap();
        fs::write(repo.join("refs/refs/pr/1"), commit).unwrap();
        fs::write(repo.join("refs/odd"), "no commit").unwrap();
        fs::write(repo.join("blobs").join(git), "abc").unwrap();
        fs::write(repo.join("blobs/e.00000000.incomplete"), "xy").unwrap();
        let snapshot = repo.join("snapshots").join(commit);
        symlink(format!("../../../blobs/{git}"), snapshot.join("x/file")).unwrap();
        symlink(format!("../../blobs/{git}"), snapshot.join(".0123abcd.tmp")).unwrap();
        symlink("../../blobs/lost", snapshot.join("dangling")).unwrap();
        symlink("..", snapshot.join("circle")).unwrap();

        let cache = Cache::at(dir.path());
        let [repo, other] = &cache.repos().unwrap()[..] else { panic!("two repositories") };
        assert_eq!(other.id().to_string(), "datasets/a/c");
        assert_eq!(repo.id().to_string(), "a/b");
        let [snapshot] = &repo.snapshots().unwrap()[..] else { panic!("one snapshot") };
        assert_eq!(snapshot.files, ["x/file"]);
        let revisions: Vec<_> = snapshot.revisions.iter().map(Revision::as_str).collect();
        assert_eq!(revisions, ["main", "refs/pr/1"]);
        assert_eq!(repo.byte_len().unwrap(), 5);
        assert_eq!(Cache::at(dir.path().join("absent")).repos().unwrap(), []);
    }
}
