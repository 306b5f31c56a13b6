//! [`Incomplete`]: an unfinished download of a blob.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors_core::framework::start_writing_back;

use super::lock::PATIENCE;
use super::{CachedRepo, create_parent, names, unique};
use crate::error::{Error, ErrorKind, Result};
use crate::etag::Etag;

const SUFFIX: &str = ".incomplete";

/// The disk gets so many bytes at a time while others arrive, so that few are left at the end.
const PIECE: u64 = 16 << 20;

/// Shows other processes that this one works. They wait only so long.
pub(crate) fn touch(file: &File) {
    let _ = file.set_modified(SystemTime::now());
}

/// Stays on disk for the next attempt, in any process.
pub(crate) struct Incomplete {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Incomplete {
    /// Continues the longest unfinished download of a blob, or begins one.
    ///
    /// `is_alone` is `true` if no other process downloads the blob, but some file systems only
    /// pretend to lock. So a recently written file is copied, which no process can change; an older
    /// one is renamed. A download without a digest is not continued, because it could not be
    /// checked.
    pub(crate) fn open(repo: &CachedRepo, etag: &Etag, size: u64, is_alone: bool) -> Result<Self> {
        let blobs = repo.blobs();
        let path = blobs.join(unique::name(&format!("{etag}."), SUFFIX));
        create_parent(&path).map_err(|error| Error::io(error, &path))?;
        if is_alone {
            for old in unfinished(&blobs, etag)? {
                if !etag.is_digest() {
                    if old.is_idle {
                        let _ = fs::remove_file(&old.path);
                    }
                    continue;
                }
                // A file that is too long has something else.
                if old.len <= size && old.move_to(&path).is_ok() {
                    let open = || {
                        let file = OpenOptions::new().write(true).open(&path)?;
                        let len = file.metadata()?.len();
                        Ok(Self { file, path: path.clone(), len })
                    };
                    return open().map_err(|error| Error::io(error, &path));
                }
            }
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| Error::io(error, &path))?;
        // The file system may share the bytes of a copy.
        let copied = repo.shared_blob(etag, size).map_or(Ok(0), |blob| fs::copy(blob, &path));
        let len = copied.map_err(|error| Error::io(error, &path))?;
        Ok(Self { file, path, len })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // Ranges that arrive at the same time are written in order. So the length of the file is
        // its progress, and no record of its parts is needed. Python's unfinished files have none.
        // The position is set each time, so that the bytes come to their place even if the file is
        // shared with another process.
        let end = self.len + bytes.len() as u64;
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(self.len))?;
            file.write_all(bytes)
        };
        write(&mut self.file).map_err(|error| self.failed(error))?;
        let [begin, whole] = [self.len, end].map(|at| at / PIECE * PIECE);
        if begin < whole {
            start_writing_back(&self.file, begin..whole);
        }
        self.len = end;
        Ok(())
    }

    /// Returns the file, to [`touch`] it.
    pub(crate) fn handle(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| self.failed(error))
    }

    pub(crate) fn restart(&mut self) -> Result<()> {
        self.len = 0;
        self.file.set_len(0).map_err(|error| Error::io(error, &self.path))
    }

    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }

    pub(crate) fn finish(self, blob: &Path) -> Result<()> {
        let finish = || {
            self.file.sync_all()?;
            fs::rename(&self.path, blob)
        };
        finish().map_err(|error| Error::io(error, blob))
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let free = super::free_bytes(&self.path).unwrap_or_default();
                Error::from(ErrorKind::DiskFull { written: self.len, free, error })
                    .in_file(self.path.display())
            }
            _ => Error::io(error, &self.path),
        }
    }
}

/// Returns a number that changes while a process downloads or checks the blob.
pub(crate) fn progress(repo: &CachedRepo, etag: &Etag) -> u64 {
    let unfinished = unfinished(&repo.blobs(), etag).unwrap_or_default();
    unfinished.iter().fold(0, |sum, file| {
        let changed =
            file.changed.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let changed = changed.map_or(0, |time| time.as_nanos() as u64);
        sum.wrapping_add(file.len).wrapping_add(changed).wrapping_add(1)
    })
}

/// Bytes to copy do not count.
pub(crate) fn resumable_bytes(repo: &CachedRepo, etag: &Etag, size: u64) -> u64 {
    if !etag.is_digest() {
        return 0;
    }
    let unfinished = unfinished(&repo.blobs(), etag).unwrap_or_default();
    let longest = unfinished.into_iter().find(|file| file.len <= size);
    longest.filter(|file| file.is_idle).map_or(0, |file| file.len)
}

struct UnfinishedDownload {
    path: PathBuf,
    len: u64,
    changed: Option<SystemTime>,
    is_idle: bool,
}

impl UnfinishedDownload {
    fn move_to(&self, path: &Path) -> io::Result<()> {
        if self.is_idle {
            return fs::rename(&self.path, path);
        }
        if let Err(error) = fs::copy(&self.path, path) {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        let _ = fs::remove_file(&self.path);
        Ok(())
    }
}

fn unfinished(blobs: &Path, etag: &Etag) -> Result<Vec<UnfinishedDownload>> {
    let is_of_blob = |name: &str| {
        let between = name.strip_prefix(etag.as_str()).and_then(|rest| rest.strip_suffix(SUFFIX));
        between.is_some_and(|id| id.is_empty() || id.starts_with('.'))
    };
    let mut files: Vec<_> = names(blobs)?
        .into_iter()
        .filter(|name| is_of_blob(name))
        .filter_map(|name| {
            let path = blobs.join(name);
            // A link may lead anywhere, and is not written to.
            let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
            let changed = metadata.modified().ok();
            let age = changed.and_then(|time| time.elapsed().ok());
            let is_idle = age.is_some_and(|age| age > PATIENCE);
            Some(UnfinishedDownload { path, len: metadata.len(), changed, is_idle })
        })
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.len));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::repo::RepoId;

    const DIGEST: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";

    fn repo(dir: &Path, etag: &str, is_idle: bool) -> (CachedRepo, Etag, PathBuf) {
        let repo = Cache::at(dir).repo(&RepoId::parse("a/b").unwrap());
        let blobs = repo.blobs();
        fs::create_dir_all(&blobs).unwrap();
        for (name, bytes) in [
            (".incomplete", "ab"),
            (".01234567.incomplete", "abc"),
            (".89abcdef.incomplete", "too long"),
            ("f.01234567.incomplete", "abcd"),
        ] {
            let path = blobs.join(format!("{etag}{name}"));
            fs::write(&path, bytes).unwrap();
            if is_idle {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_modified(SystemTime::now() - 2 * PATIENCE).unwrap();
            }
        }
        (repo, Etag::of_blob(etag).unwrap(), blobs)
    }

    #[test]
    fn a_process_that_still_writes_cannot_change_the_blob() {
        let dir = tempfile::tempdir().unwrap();
        let (repo, etag, blobs) = repo(dir.path(), DIGEST, false);
        let name = format!("{DIGEST}.01234567.incomplete");
        let mut other = OpenOptions::new().append(true).open(blobs.join(name)).unwrap();
        assert_eq!(resumable_bytes(&repo, &etag, 5), 0, "the copy needs room");
        let mut ours = Incomplete::open(&repo, &etag, 5, true).unwrap();
        assert_eq!(ours.len(), 3);
        ours.write(b"de").unwrap();
        let before = progress(&repo, &etag);
        touch(&ours.file);
        assert_ne!(progress(&repo, &etag), before, "waiting processes see that this one works");
        ours.finish(&repo.blob(&etag)).unwrap();
        other.write_all(b"more").unwrap();
        assert_eq!(fs::read(repo.blob(&etag)).unwrap(), b"abcde");
    }

    #[test]
    fn a_download_without_a_digest_starts_again() {
        for is_idle in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (repo, etag, blobs) = repo(dir.path(), "no-digest", is_idle);
            assert_eq!(resumable_bytes(&repo, &etag, 5), 0);
            assert_eq!(Incomplete::open(&repo, &etag, 5, true).unwrap().len(), 0);
            assert_eq!(blobs.join("no-digest.incomplete").exists(), !is_idle);
        }
    }

    #[test]
    fn the_longest_download_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let (repo, etag, blobs) = repo(dir.path(), DIGEST, true);
        assert_eq!(resumable_bytes(&repo, &etag, 5), 3);
        let others = Incomplete::open(&repo, &etag, 5, false).unwrap();
        assert_eq!(others.len(), 0);
        let mut ours = Incomplete::open(&repo, &etag, 5, true).unwrap();
        assert_eq!(ours.len(), 3);
        assert!(!blobs.join(format!("{DIGEST}.01234567.incomplete")).exists());
        ours.write(b"de").unwrap();
        ours.finish(&repo.blob(&etag)).unwrap();
        assert_eq!(fs::read(repo.blob(&etag)).unwrap(), b"abcde");
        let longer_name = blobs.join(format!("{DIGEST}f.01234567.incomplete"));
        assert_eq!(fs::read(longer_name).unwrap(), b"abcd");
    }
}
