//! [`HubFile`]: a file on the Hub, read by ranges.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use safetensors_core::ReadAt;
use safetensors_core::digest::Sha256;

use super::Client;
use super::body::{self, Opened};
use super::resolve::{Resolved, changed};
use super::retry::{Attempts, Failure};
use super::url::Url;
use crate::error::{Error, ErrorKind, Result};
use crate::etag::Etag;
use crate::repo::{RepoId, Revision};
use crate::stop;

/// Each so many bytes that arrive allow one more failure.
const FORGIVING: u64 = 1 << 20;

/// A file of a repository at one commit. Its bytes are read by range, from several threads at once.
///
/// A broken connection, a server that stalls or is overloaded, and a signed address that has expired
/// are overcome: the rest is asked for again. Bytes that do not belong to the range are never given.
///
/// It is a [`ReadAt`], so core can open it as a file of tensors. Each read is at least one request.
pub struct HubFile {
    client: Client,
    path: String,
    resolved: Resolved,
    /// Where the bytes are now; `None` if that has to be asked for again.
    url: Mutex<Option<Url>>,
}

impl HubFile {
    pub(super) fn new(client: Client, path: &str, resolved: Resolved) -> Self {
        let url = Mutex::new(Some(resolved.url.clone()));
        Self { client, path: path.into(), resolved, url }
    }

    /// The repository; the new one if it was renamed.
    pub fn repo(&self) -> &RepoId {
        &self.resolved.repo
    }

    /// The commit that the file belongs to: 40 hex digits.
    pub fn commit(&self) -> &Revision {
        &self.resolved.commit
    }

    /// The name of the file in the repository.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The number of bytes, as the Hub says.
    pub fn byte_len(&self) -> u64 {
        self.resolved.size
    }

    /// What the Hub calls the content: the SHA-256 of a large file, git's SHA-1 of a small one.
    pub fn etag(&self) -> &str {
        self.resolved.etag.as_str()
    }

    /// The SHA-256 of a large file, as the Hub says.
    pub fn sha256(&self) -> Option<Sha256> {
        self.resolved.etag.sha256()
    }

    pub(crate) fn checked_etag(&self) -> &Etag {
        &self.resolved.etag
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongSize`] if the file ends before `buf` is full; [`ErrorKind::Changed`];
    /// [`ErrorKind::Network`] and the like.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_until(buf, offset, &AtomicBool::new(false))
    }

    /// [`read_exact_at`](HubFile::read_exact_at), which ends soon after another thread sets `stop`.
    ///
    /// # Errors
    ///
    /// Those of [`read_exact_at`](HubFile::read_exact_at); [`ErrorKind::Cancelled`].
    pub fn read_until(&self, buf: &mut [u8], offset: u64, stop: &AtomicBool) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.byte_len()) else {
            let expected = end.unwrap_or(u64::MAX);
            let kind = ErrorKind::WrongSize { expected, found: self.byte_len() };
            return Err(self.locate(kind.into()));
        };
        let mut filled = 0;
        self.stream(offset..end, stop, &mut |bytes| {
            buf[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
            Ok(())
        })
    }

    /// Gives the bytes of a range to `sink`, in order and in pieces. An error of `sink` ends it.
    pub(crate) fn stream(
        &self,
        range: Range<u64>,
        stop: &AtomicBool,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut attempts = Attempts::new(self.client.shared.patience, stop);
        let (mut at, mut forgiven) = (range.start, range.start);
        while at < range.end {
            stop::check(stop)?;
            let rest = at..range.end;
            let copied = self.open(&rest, stop).and_then(|mut opened| {
                opened.copy(|bytes| {
                    stop::check(stop)?;
                    sink(bytes)?;
                    at += bytes.len() as u64;
                    Ok(())
                })
            });
            while forgiven + FORGIVING <= at {
                forgiven += FORGIVING;
                attempts.forgive();
            }
            if let Err(failure) = copied {
                attempts.pause(failure).map_err(|error| self.locate(error))?;
            }
        }
        Ok(())
    }

    /// Asks for a range, and resolves the file again if its address is not known any more.
    fn open(&self, range: &Range<u64>, stop: &AtomicBool) -> Result<Opened, Failure> {
        stop::check(stop)?;
        let url = self.url()?;
        let opened = body::open(self.client.http(), &url, range, self.byte_len());
        if opened.is_err() {
            // The address may have expired, or its host may be the one that fails.
            let mut known = self.url.lock().unwrap_or_else(PoisonError::into_inner);
            if known.as_ref() == Some(&url) {
                *known = None;
            }
        }
        opened
    }

    /// Where the bytes are.
    fn url(&self) -> Result<Url, Failure> {
        // Threads that find no address wait for the first of them to ask.
        let mut known = self.url.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(url) = &*known {
            return Ok(url.clone());
        }
        let now = self.client.resolve(self.repo(), self.commit(), &self.path)?;
        match changed(&self.resolved, &now) {
            Some(error) => Err(Failure::Final(self.locate(error))),
            None => Ok(known.insert(now.url).clone()),
        }
    }

    /// Adds the repository and the file to an error.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.in_repo(self.repo()).in_file(&self.path)
    }
}

impl fmt::Debug for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubFile")
            .field("repo", self.repo())
            .field("path", &self.path)
            .field("commit", self.commit())
            .field("byte_len", &self.byte_len())
            .finish_non_exhaustive()
    }
}

impl ReadAt for HubFile {
    fn byte_len(&self) -> u64 {
        self.resolved.size
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        HubFile::read_exact_at(self, buf, offset).map_err(io::Error::from)
    }
}
