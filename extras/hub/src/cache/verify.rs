//! Checks whether the files of a cache are intact.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use safetensors_core::io::next_to;
use serde::Deserialize;

use super::scan::broken_links_below;
use super::{CachedRepo, CachedSnapshot, joined, names};
use crate::error::{Error, Result};
use crate::etag::Etag;

/// The result of [`CachedRepo::verify`]: each file is in one of the fields.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Verification {
    /// The number of files with the Hub's digest.
    pub intact: usize,
    /// Files with a different digest ([`ErrorKind::WrongDigest`](crate::ErrorKind::WrongDigest)),
    /// unreadable files and links to missing blobs, with the error. The next download replaces
    /// removed files.
    pub damaged: Vec<(PathBuf, Error)>,
    /// Files without a known digest, and branches or tags without a snapshot, with the reason.
    pub unverified: Vec<(PathBuf, &'static str)>,
}

const NO_DIGEST: &str = "its name is no digest of its content";

const COPY: &str = "it is a copy in a snapshot, and the cache has no digest of it";

const NO_SNAPSHOT: &str = "the cache has no snapshot of its commit; download it again";

impl CachedRepo {
    /// Reads every file and compares it with the Hub's digest: the SHA-256 of a large file, git's
    /// SHA-1 of a small one.
    ///
    /// A blob's name is its digest; other names are not verified. Blobs of other servers, with
    /// names of 64 hex digits that are not SHA-256, count as damaged. Copies in snapshots, on
    /// systems without links, are compared with digests that newer Python versions list, or are
    /// intact if equal to a blob.
    pub fn verify(&self) -> Result<Verification> {
        let mut found = Verification::default();
        let blobs = self.blobs();
        let mut names = names(&blobs)?;
        names.retain(|name| !name.ends_with(".incomplete"));
        names.sort();
        let mut by_len: HashMap<u64, Vec<Etag>> = HashMap::new();
        for name in &names {
            let path = blobs.join(name);
            let byte_len = fs::metadata(&path).map(|metadata| metadata.len());
            match Etag::of_blob(name).filter(Etag::is_digest) {
                Some(digest) => {
                    found.compare(path, &digest);
                    if let Ok(byte_len) = byte_len {
                        by_len.entry(byte_len).or_default().push(digest);
                    }
                }
                None => found.unverified.push((path, NO_DIGEST)),
            }
        }
        for snapshot in self.snapshots()? {
            let digests = self.listed_digests(&snapshot);
            for file in &snapshot.files {
                let path = joined(&snapshot.dir, file);
                match digests.get(file) {
                    _ if is_link_to(&path, &blobs, &names) => {}
                    Some(digest) => found.compare(path, digest),
                    None if is_copy(&path, &by_len) => found.intact += 1,
                    None => found.unverified.push((path, COPY)),
                }
            }
            for file in broken_links_below(&snapshot.dir)? {
                let path = joined(&snapshot.dir, &file);
                if let Err(error) = fs::metadata(&path) {
                    found.add_damaged(Error::io(error, &path), path);
                }
            }
        }
        for (revision, _) in self.revisions_without_snapshot()? {
            found.unverified.push((self.reference(&revision), NO_SNAPSHOT));
        }
        Ok(found)
    }

    /// By file name. An unreadable list is ignored.
    fn listed_digests(&self, snapshot: &CachedSnapshot) -> HashMap<String, Etag> {
        let name = format!("{}.json", snapshot.commit);
        let json = next_to::read(&self.dir.join("trees"), name, MOST).ok().flatten();
        let listed = json.and_then(|json| serde_json::from_slice::<Tree>(&json).ok());
        let files = listed.filter(|tree| tree.format_version == 1).map(|tree| tree.files);
        let digest = |(name, file): (String, TreeFile)| {
            let text = file.lfs_sha256.unwrap_or(file.blob_id);
            Some((name, Etag::of_blob(&text).filter(Etag::is_digest)?))
        };
        files.unwrap_or_default().into_iter().filter_map(digest).collect()
    }
}

impl Verification {
    fn compare(&mut self, path: PathBuf, digest: &Etag) {
        match digest.check(&path, None, &AtomicBool::new(false)) {
            Ok(()) => self.intact += 1,
            Err(error) => self.add_damaged(error, path),
        }
    }

    fn add_damaged(&mut self, error: Error, path: PathBuf) {
        let error = error.in_path(&path);
        self.damaged.push((path, error));
    }
}

/// `names`: the sorted names of the blobs, which are read separately.
fn is_link_to(path: &Path, blobs: &Path, names: &[String]) -> bool {
    let Ok(target) = fs::read_link(path) else { return false };
    let Some(name) = target.file_name().and_then(|name| name.to_str()) else { return false };
    let is_name = names.binary_search_by(|it| it.as_str().cmp(name)).is_ok();
    // The target may be a file of this name elsewhere, such as a blob of another cache.
    let real = |path: &Path| fs::canonicalize(path).ok();
    is_name && real(path).is_some_and(|path| real(&blobs.join(name)) == Some(path))
}

fn is_copy(path: &Path, by_len: &HashMap<u64, Vec<Etag>>) -> bool {
    let byte_len = fs::metadata(path).ok().map(|metadata| metadata.len());
    let mut alike = byte_len.and_then(|len| by_len.get(&len)).into_iter().flatten();
    alike.any(|digest| digest.check(path, None, &AtomicBool::new(false)).is_ok())
}

const MOST: u64 = 100_000_000;

#[derive(Deserialize)]
struct Tree {
    format_version: u64,
    files: HashMap<String, TreeFile>,
}

#[derive(Deserialize)]
struct TreeFile {
    /// Git's SHA-1; for a large file, of its pointer.
    blob_id: String,
    lfs_sha256: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::error::ErrorKind;
    use crate::repo::Revision;
    use safetensors_core as core;

    const GIT: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"; // of "abc"
    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const COMMIT: &str = "0123456789012345678901234567890123456789";

    fn repo(dir: &Path, blobs: &[(&str, &str)], copies: &[(&str, &str)]) -> CachedRepo {
        let repo = dir.join("models--a--b");
        let (blob_dir, snapshot) = (repo.join("blobs"), repo.join("snapshots").join(COMMIT));
        for (dir, files) in [(blob_dir, blobs), (snapshot, copies)] {
            fs::create_dir_all(&dir).unwrap();
            for (name, content) in files {
                fs::write(dir.join(name), content).unwrap();
            }
        }
        Cache::at(dir).repos().unwrap().remove(0)
    }

    fn found(repo: &CachedRepo) -> (usize, Vec<String>, Vec<String>) {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let Verification { intact, damaged, unverified } = repo.verify().unwrap();
        let damaged = damaged.iter().map(|(path, _)| name(path)).collect();
        (intact, damaged, unverified.iter().map(|(path, _)| name(path)).collect())
    }

    #[test]
    fn damaged_blobs_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = [(GIT, "abc"), ("e.00000000.incomplete", "xy")];
        let repo = repo(dir.path(), &blobs, &[]);
        assert_eq!(found(&repo), (1, vec![], vec![]));
        fs::write(repo.blobs().join(GIT), "abd").unwrap();
        let damaged = repo.verify().unwrap().damaged;
        let [(path, error)] = &damaged[..] else { panic!("{damaged:?}") };
        assert!(path.ends_with(GIT));
        assert!(matches!(error.other(), Some(ErrorKind::WrongDigest { .. })));
        assert_eq!(error.file(), path.to_str());
    }

    #[test]
    fn blobs_without_a_digest_as_name_are_not_verified() {
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path(), &[(GIT, "abc"), ("W-1-2", "x"), (".x y", "z")], &[]);
        assert_eq!(found(&repo), (1, vec![], vec![".x y".into(), "W-1-2".into()]));
    }

    #[test]
    fn a_branch_without_a_snapshot_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path(), &[(GIT, "abc")], &[]);
        fs::create_dir_all(repo.dir().join("refs/refs/pr")).unwrap();
        fs::write(repo.dir().join("refs/main"), COMMIT).unwrap();
        assert_eq!(found(&repo), (1, vec![], vec![]));
        let other = COMMIT.replace('0', "f");
        fs::write(repo.dir().join("refs/refs/pr/1"), &other).unwrap();
        assert_eq!(found(&repo), (1, vec![], vec!["1".into()]));
        let lost = repo.revisions_without_snapshot().unwrap();
        assert_eq!(lost, [("refs/pr/1".parse().unwrap(), other.parse().unwrap())]);
        // The repository is listed, even if nothing else is there.
        fs::remove_dir_all(repo.dir().join("snapshots")).unwrap();
        let repos = Cache::at(dir.path()).repos().unwrap();
        assert_eq!(repos[0].revisions_without_snapshot().unwrap().len(), 2);
    }

    #[test]
    fn copies_in_snapshots_are_verified_by_a_list_or_by_a_blob() {
        let dir = tempfile::tempdir().unwrap();
        // As by `cp -L`: the blobs are there too.
        let copies = [("config.json", "abc"), ("other.json", "abd"), ("alone", "alone")];
        let repo = repo(dir.path(), &[(GIT, "abc")], &copies);
        assert_eq!(found(&repo), (2, vec![], vec!["alone".into(), "other.json".into()]));
        // As on Windows.
        fs::remove_file(repo.blobs().join(GIT)).unwrap();
        assert_eq!(found(&repo).2.len(), 3);
        let list = |version: u32| {
            let other =
                format!(r#"{{"size": 3, "blob_id": "{COMMIT}", "lfs_sha256": "{SHA256}"}}"#);
            let config = format!(r#"{{"size": 3, "blob_id": "{GIT}"}}"#);
            let files = format!(r#"{{"config.json": {config}, "other.json": {other}}}"#);
            let text = format!(r#"{{"format_version": {version}, "files": {files}}}"#);
            fs::create_dir_all(repo.dir().join("trees")).unwrap();
            fs::write(repo.dir().join("trees").join(format!("{COMMIT}.json")), text).unwrap();
        };
        list(1);
        assert_eq!(found(&repo), (1, vec!["other.json".into()], vec!["alone".into()]));
        list(2);
        assert_eq!(found(&repo).2.len(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_read_once_unless_they_lead_elsewhere() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path(), &[(GIT, "abc")], &[("alone", "alone")]);
        let snapshot = repo.dir().join("snapshots").join(COMMIT);
        symlink(format!("../../blobs/{GIT}"), snapshot.join("a")).unwrap();
        symlink("alone", snapshot.join("b")).unwrap();
        assert_eq!(found(&repo), (1, vec![], vec!["alone".into(), "b".into()]));
    }

    #[cfg(unix)]
    #[test]
    fn special_files_are_damaged_or_no_list_or_no_reference() {
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path(), &[(GIT, "abc")], &[("alone", "alone")]);
        let list = format!("trees/{COMMIT}.json");
        for name in [&*format!("blobs/{SHA256}"), &list, "refs/main"] {
            let path = repo.dir().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        }
        assert_eq!(found(&repo), (1, vec![SHA256.into()], vec!["alone".into()]));
        let error = repo.commit(&Revision::parse("main").unwrap()).unwrap_err();
        assert!(matches!(error.kind(), core::ErrorKind::NotAFile { .. }), "{error}");
        // Not more is read than a name of a commit can have.
        fs::remove_file(repo.dir().join("refs/main")).unwrap();
        let large = fs::File::create(repo.dir().join("refs/main")).unwrap();
        large.set_len(1 << 30).unwrap();
        assert!(repo.commit(&Revision::parse("main").unwrap()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_elsewhere_or_to_nothing_is_not_a_link_to_a_blob() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let repo = repo(dir.path(), &[(GIT, "abc")], &[]);
        let old = dir.path().join("old/blobs");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join(GIT), "abd").unwrap();
        let snapshot = repo.dir().join("snapshots").join(COMMIT);
        symlink(old.join(GIT), snapshot.join("elsewhere")).unwrap();
        assert_eq!(found(&repo), (1, vec![], vec!["elsewhere".into()]));
        fs::write(old.join(GIT), "abc").unwrap();
        assert_eq!(found(&repo), (2, vec![], vec![]));
        fs::create_dir(snapshot.join("x")).unwrap();
        symlink(format!("../../../blobs/{SHA256}"), snapshot.join("x/lost")).unwrap();
        symlink(format!("../../blobs/{SHA256}"), snapshot.join(".0123abcd.tmp")).unwrap();
        assert_eq!(found(&repo), (2, vec!["lost".into()], vec![]));
        let damaged = repo.verify().unwrap().damaged;
        assert!(matches!(damaged[0].1.kind(), core::ErrorKind::Io(_)), "{damaged:?}");
        // A blob may itself be a link into a store for all models.
        let blob = repo.blobs().join(GIT);
        fs::rename(&blob, dir.path().join("stored")).unwrap();
        symlink(dir.path().join("stored"), &blob).unwrap();
        symlink(format!("../../blobs/{GIT}"), snapshot.join("a")).unwrap();
        assert_eq!(found(&repo), (2, vec!["lost".into()], vec![]));
    }
}
