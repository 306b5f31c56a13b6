//! [`Incomplete`]: a blob that is being downloaded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{CachedRepo, create_parent, names, unique};
use crate::error::{Error, ErrorKind, Result};
use crate::etag::Etag;

/// How the name of an unfinished download ends.
const SUFFIX: &str = ".incomplete";

/// An unfinished download. It stays on the disk until it is complete, so that the next attempt goes
/// on with it, in this process or another one.
pub(crate) struct Incomplete {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Incomplete {
    /// Goes on with the longest unfinished download of a blob of `size` bytes, or begins one.
    ///
    /// `is_alone` says that no other process downloads the blob. The file gets a new name, which no
    /// other process knows. If a process does write to it all the same, it writes the same bytes to
    /// the same places.
    pub(crate) fn open(repo: &CachedRepo, etag: &Etag, size: u64, is_alone: bool) -> Result<Self> {
        let blobs = repo.blobs();
        let path = blobs.join(unique::name(&format!("{etag}."), SUFFIX));
        create_parent(&path).map_err(|error| Error::io(error, &path))?;
        if is_alone {
            for (old, len) in unfinished(&blobs, etag)? {
                // A file that is too long has something else.
                let usable = len <= size;
                if usable && fs::rename(&old, &path).is_ok() {
                    let open = || {
                        let file = OpenOptions::new().write(true).open(&path)?;
                        let len = file.metadata()?.len();
                        Ok(Self { file, path: path.clone(), len })
                    };
                    return open().map_err(|error| Error::io(error, &path));
                }
            }
        }
        let create = || OpenOptions::new().write(true).create_new(true).open(&path);
        let file = create().map_err(|error| Error::io(error, &path))?;
        Ok(Self { file, path, len: 0 })
    }

    /// The bytes that are there already.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the next bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // The position is set each time, so that the bytes come to their place even if the file is
        // shared with another process.
        let write = |file: &mut File| {
            file.seek(SeekFrom::Start(self.len))?;
            file.write_all(bytes)
        };
        write(&mut self.file).map_err(|error| self.failed(error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Removes all bytes, because they are wrong.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.len = 0;
        self.file.set_len(0).map_err(|error| Error::io(error, &self.path))
    }

    /// Removes the file, because its bytes are wrong.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Gives the complete file the name of its blob. Its bytes are on the disk before.
    pub(crate) fn finish(self, blob: &Path) -> Result<()> {
        let finish = || {
            self.file.sync_all()?;
            fs::rename(&self.path, blob)
        };
        finish().map_err(|error| Error::io(error, blob))
    }

    /// The error of a write. What is on the disk stays there, for the next attempt.
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

/// The lengths of all unfinished downloads of a blob together. The number changes while a process
/// downloads it.
pub(crate) fn unfinished_bytes(repo: &CachedRepo, etag: &Etag) -> u64 {
    let unfinished = unfinished(&repo.blobs(), etag).unwrap_or_default();
    unfinished.iter().fold(0, |sum, (_, len)| sum.wrapping_add(*len).wrapping_add(1))
}

/// The length of the longest unfinished download of a blob of `size` bytes.
pub(crate) fn resumable_bytes(repo: &CachedRepo, etag: &Etag, size: u64) -> u64 {
    let unfinished = unfinished(&repo.blobs(), etag).unwrap_or_default();
    unfinished.into_iter().map(|(_, len)| len).find(|len| *len <= size).unwrap_or(0)
}

/// The unfinished downloads of a blob, the longest first.
fn unfinished(blobs: &Path, etag: &Etag) -> Result<Vec<(PathBuf, u64)>> {
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
            Some((path, metadata.len()))
        })
        .collect();
    files.sort_by_key(|(_, len)| std::cmp::Reverse(*len));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::repo::RepoId;

    #[test]
    fn the_longest_download_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Cache::at(dir.path()).repo(&RepoId::parse("a/b").unwrap());
        let etag = Etag::of_blob("e").unwrap();
        let blobs = repo.blobs();
        fs::create_dir_all(&blobs).unwrap();
        for (name, bytes) in [
            ("e.incomplete", "ab"),
            ("e.01234567.incomplete", "abc"),
            ("e.89abcdef.incomplete", "too long"),
            ("ef.01234567.incomplete", "abcd"),
        ] {
            fs::write(blobs.join(name), bytes).unwrap();
        }
        assert_eq!(resumable_bytes(&repo, &etag, 5), 3);
        let others = Incomplete::open(&repo, &etag, 5, false).unwrap();
        assert_eq!(others.len(), 0);
        let mut ours = Incomplete::open(&repo, &etag, 5, true).unwrap();
        assert_eq!(ours.len(), 3);
        assert!(!blobs.join("e.01234567.incomplete").exists());
        ours.write(b"de").unwrap();
        ours.finish(&repo.blob(&etag)).unwrap();
        assert_eq!(fs::read(repo.blob(&etag)).unwrap(), b"abcde");
        assert_eq!(fs::read(blobs.join("ef.01234567.incomplete")).unwrap(), b"abcd");
    }
}
