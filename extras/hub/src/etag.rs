//! [`Etag`]: the Hub's identifier of a file's content, and its check.
//!
//! `ring` computes the digests, since TLS needs it anyway: it is assembly, and fast in a debug
//! build.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use safetensors_core::ReadAt;
use safetensors_core::io::FileSource;

use crate::error::{Error, ErrorKind, Result, check_stop};
use crate::repo::{Revision, is_hex};

const LONGEST: usize = 128;

/// The bytes that are hashed at once.
const PIECE: usize = 1 << 20;

/// In a cache, the name of the blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Etag {
    text: String,
    digest: Algorithm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    /// Of the content of a large file.
    Sha256,
    /// Of git's object of a small file. Some mirrors use the SHA-1 of the content.
    Sha1,
    Unknown,
}

impl Etag {
    /// Parses a quoted ETag. `is_linked` if it is from `X-Linked-Etag`, which large files have.
    /// `None` if it cannot name a file.
    pub(crate) fn of_header(header: &str, is_linked: bool) -> Option<Self> {
        let text = Self::text_of(header);
        let is_name = (1..=LONGEST).contains(&text.len())
            && !text.starts_with('.')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        let digest = match text {
            text if is_hex(text, 40) => Algorithm::Sha1,
            text if is_linked && is_hex(text, 64) => Algorithm::Sha256,
            _ => Algorithm::Unknown,
        };
        is_name.then(|| Self { text: text.into(), digest })
    }

    /// Also removes the mark of a weak ETag.
    pub(crate) fn text_of(header: &str) -> &str {
        let text = header.strip_prefix("W/").unwrap_or(header);
        text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
    }

    pub(crate) fn is_digest(&self) -> bool {
        self.digest != Algorithm::Unknown
    }

    /// Files of equal length may share a text that is not a digest, as with nginx.
    pub(crate) fn blob(&self, commit: &Revision, path: &str, size: u64) -> Self {
        if self.is_digest() {
            return self.clone();
        }
        let place = hex(digest(&SHA256, format!("{commit}/{path} {size}").as_bytes()));
        let start = &self.text[..self.text.floor_char_boundary(LONGEST - 33)];
        Self { text: format!("{start}-{}", &place[..32]), digest: Algorithm::Unknown }
    }

    pub(crate) fn of_blob(name: &str) -> Option<Self> {
        Self::of_header(name, true)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Compares a file with the ETag, and with the size that the Hub reports.
    pub(crate) fn check(&self, path: &Path, size: Option<u64>, stop: &AtomicBool) -> Result<()> {
        let file = FileSource::open(path)?;
        let found = file.byte_len();
        if let Some(expected) = size.filter(|size| *size != found) {
            return Err(ErrorKind::WrongSize { expected, found }.into());
        }
        let mut check = Check::new(self, file, found);
        check.follow(found, stop, || ())?;
        check.finish()
    }
}

/// Compares a file with its ETag while the file grows.
pub(crate) struct Check<'a> {
    etag: &'a Etag,
    file: FileSource,
    size: u64,
    hashes: Vec<Context>,
    /// The bytes that were hashed.
    done: u64,
    buffer: Vec<u8>,
}

impl<'a> Check<'a> {
    /// `size` is the number of bytes of the whole file.
    pub(crate) fn new(etag: &'a Etag, file: FileSource, size: u64) -> Self {
        let hashes = match etag.digest {
            Algorithm::Sha256 => vec![Context::new(&SHA256)],
            Algorithm::Sha1 => {
                let mut git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                git.update(format!("blob {size}\0").as_bytes());
                vec![git, Context::new(&SHA1_FOR_LEGACY_USE_ONLY)]
            }
            Algorithm::Unknown => Vec::new(),
        };
        Self { etag, file, size, hashes, done: 0, buffer: Vec::new() }
    }

    /// Hashes the bytes before `end` that were not hashed so far. Calls `work` for each piece.
    pub(crate) fn follow(
        &mut self,
        end: u64,
        stop: &AtomicBool,
        mut work: impl FnMut(),
    ) -> Result<()> {
        self.buffer.resize(PIECE, 0);
        while self.done < end && !self.hashes.is_empty() {
            check_stop(stop)?;
            work();
            let len = (end - self.done).min(PIECE as u64) as usize;
            match self.file.file().read(&mut self.buffer[..len]) {
                // It has become shorter, as the end finds.
                Ok(0) => break,
                Ok(len) => {
                    self.hashes.iter_mut().for_each(|hash| hash.update(&self.buffer[..len]));
                    self.done += len as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(error, self.file.path())),
            }
        }
        Ok(())
    }

    /// Fails unless all bytes were hashed, and have the digest.
    pub(crate) fn finish(self) -> Result<()> {
        let path = self.file.path();
        let found = self.file.file().metadata().map_err(|error| Error::io(error, path))?.len();
        if found != self.size {
            return Err(ErrorKind::WrongSize { expected: self.size, found }.into());
        }
        let found: Vec<String> = self.hashes.into_iter().map(|hash| hex(hash.finish())).collect();
        if found.is_empty() || found.contains(&self.etag.text) {
            return Ok(());
        }
        let algorithm = if self.etag.digest == Algorithm::Sha256 { "SHA-256" } else { "SHA-1" };
        let expected = self.etag.text.clone();
        let found = found.into_iter().next().unwrap_or_default();
        Err(ErrorKind::WrongDigest { algorithm, expected, found }.into())
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn hex(digest: Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn only_names_of_files_are_etags() {
        for (header, is_linked, text) in
            [("\"abc\"", false, "abc"), ("W/\"a-b.c_d\"", true, "a-b.c_d"), (ABC, true, ABC)]
        {
            assert_eq!(Etag::of_header(header, is_linked).unwrap().as_str(), text);
        }
        let long = "a".repeat(129);
        for bad in ["", "\"\"", "..", "../x", "a/b", "a\\b", ".a", "a:b", "a\0", &long] {
            assert_eq!(Etag::of_header(bad, true), None, "{bad:?}");
        }
        assert_eq!(Etag::of_header(ABC, true).unwrap().digest, Algorithm::Sha256);
        assert_eq!(Etag::of_header(ABC, false).unwrap().digest, Algorithm::Unknown);
    }

    #[test]
    fn files_are_checked_against_their_etag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let check = |etag: &str, size| {
            Etag::of_blob(etag).unwrap().check(&path, size, &AtomicBool::new(false))
        };
        // `printf abc | sha256sum`, `git hash-object`, `sha1sum`, and something unknown.
        let git = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";
        for good in [ABC, git, "a9993e364706816aba3e25717850c26c9cd0d89d", "unknown"] {
            check(good, Some(3)).unwrap();
            check(good, None).unwrap();
            let error = check(good, Some(4)).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::WrongSize { expected: 4, found: 3 })));
        }
        for bad in [ABC.replace('b', "c"), git.replace('f', "e")] {
            let error = check(&bad, Some(3)).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::WrongDigest { .. })), "{error}");
        }
    }
}
