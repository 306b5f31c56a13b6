//! [`HubFile`]: a file on the Hub, read by ranges.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, PoisonError};

use safetensors_core::{ReadAt, lock};

use super::Client;
use super::body::{self, RangeBody};
use super::resolve::{Resolved, changed};
use super::retry::{Failure, GLANCE};
use super::url::Url;
use crate::error::{Error, ErrorKind, Result, check_stop, to_io};
use crate::etag::Etag;
use crate::repo::{RepoId, Revision, check_file_name};

/// Bytes that allow one more failure.
const FORGIVING: u64 = 1 << 20;

/// The Hub's CDN answers 400 to a request for more.
const LARGEST_WHOLE: u64 = 50_000_000_000;

const PART: u64 = 16 << 30;

/// A file of a repository at one commit, read by ranges from several threads.
///
/// After a broken connection, a silent or overloaded server, or an expired address, the rest is
/// requested again. A changed file is [`ErrorKind::Changed`].
///
/// As a [`ReadAt`] it opens as a file of tensors. Each read is at least one request, and fails with
/// an I/O error; [`other`](Error::other) of the core's error finds the [`ErrorKind`].
pub struct HubFile {
    client: Client,
    path: String,
    resolved: Resolved,
    blob: Etag,
    address: Mutex<Address>,
    answered: Condvar,
}

enum Address {
    Known { url: Url, has_worked: bool },
    Unknown,
    Asked,
}

impl Client {
    /// Asks for a file's size, ETag and commit, by one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileNotFound`], [`ErrorKind::UnsafeName`]; otherwise like [`Client::files`].
    pub fn file(&self, repo: &RepoId, revision: &Revision, path: &str) -> Result<HubFile> {
        self.file_until(repo, revision, path, &AtomicBool::new(false))
    }

    pub(crate) fn file_until(
        &self,
        repo: &RepoId,
        revision: &Revision,
        path: &str,
        stop: &AtomicBool,
    ) -> Result<HubFile> {
        check_file_name(path).map_err(|error| error.in_file(repo))?;
        let attempts = self.attempts(stop);
        let resolved = attempts.run(|| self.resolve(repo, revision, path))?;
        Ok(HubFile::new(self.clone(), path, resolved))
    }
}

struct Asking<'a> {
    file: &'a HubFile,
    then: Address,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *lock(&self.file.address) = mem::replace(&mut self.then, Address::Unknown);
        self.file.answered.notify_all();
    }
}

impl HubFile {
    fn new(client: Client, path: &str, resolved: Resolved) -> Self {
        let address = Address::Known { url: resolved.url.clone(), has_worked: false };
        Self {
            client,
            path: path.into(),
            blob: resolved.etag.blob(&resolved.commit, path, resolved.size),
            resolved,
            address: Mutex::new(address),
            answered: Condvar::new(),
        }
    }

    /// Returns the repository, under its new name if it was renamed.
    pub fn repo(&self) -> &RepoId {
        &self.resolved.repo
    }

    /// Returns the commit: 40 hex digits, or for a bucket the requested revision.
    pub fn commit(&self) -> &Revision {
        &self.resolved.commit
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the content's identifier: the SHA-256 of a large file, git's SHA-1 of a small one.
    pub fn etag(&self) -> &str {
        self.resolved.etag.as_str()
    }

    pub(crate) fn blob(&self) -> &Etag {
        &self.blob
    }

    /// Fills `buf` from `offset` on, like [`ReadAt::read_exact_at`], until another thread sets
    /// `stop`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongSize`] if the file ends too early; [`ErrorKind::Changed`];
    /// [`ErrorKind::Network`] and the like; `Cancelled`.
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

    /// In order, in pieces. An error of `sink` ends it.
    pub(crate) fn stream(
        &self,
        range: Range<u64>,
        stop: &AtomicBool,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut attempts = self.client.attempts(stop);
        let mut at = range.start;
        let mut forgiven = range.start;
        while at < range.end {
            check_stop(stop)?;
            let next = next_request(at..range.end, self.byte_len());
            let copied = self.open(&next, stop).and_then(|mut opened| {
                opened.copy(|bytes| {
                    check_stop(stop)?;
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

    /// Asks for the last byte. Returns whether the server sends it alone, and not the entire file.
    pub(crate) fn has_ranges(&self, stop: &AtomicBool) -> Result<bool> {
        let last = self.byte_len().saturating_sub(1)..self.byte_len();
        let request = || {
            let mut body = self.open(&last, stop)?;
            if body.is_range {
                // The connection is used again once the answer was read.
                body.copy(|_| Ok(()))?;
            }
            Ok(body.is_range)
        };
        self.client.attempts(stop).run(request).map_err(|error| self.locate(error))
    }

    fn open(&self, range: &Range<u64>, stop: &AtomicBool) -> Result<RangeBody, Failure> {
        loop {
            check_stop(stop)?;
            let url = self.url(stop)?;
            let failure = match body::open(self.client.http(), &url, range, &self.resolved) {
                Ok(opened) => {
                    self.praise(&url);
                    return Ok(opened);
                }
                Err(failure) => failure,
            };
            // The address may have expired, or its host may be the one that fails.
            let has_worked = self.forget(&url);
            match failure {
                // This is how addresses end, and no failure. Many threads may find that.
                Failure::Expired(_) if has_worked => {}
                failure => return Err(failure),
            }
        }
    }

    /// One thread asks for a missing address; others wait for it or for `stop`.
    fn url(&self, stop: &AtomicBool) -> Result<Url, Failure> {
        let mut address = lock(&self.address);
        loop {
            match &*address {
                Address::Known { url, .. } => return Ok(url.clone()),
                Address::Unknown => break,
                Address::Asked => check_stop(stop)?,
            }
            let waited = self.answered.wait_timeout(address, GLANCE);
            address = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *address = Address::Asked;
        drop(address);
        let mut asking = Asking { file: self, then: Address::Unknown };
        let url = self.ask()?;
        asking.then = Address::Known { url: url.clone(), has_worked: false };
        Ok(url)
    }

    /// The file must be the same.
    fn ask(&self) -> Result<Url, Failure> {
        let now = self.client.resolve(self.repo(), self.commit(), &self.path)?;
        match changed(&self.resolved, &now) {
            Some(error) => Err(Failure::Final(self.locate(error))),
            None => Ok(now.url),
        }
    }

    fn praise(&self, used: &Url) {
        if let Address::Known { url, has_worked } = &mut *lock(&self.address) {
            *has_worked |= url == used;
        }
    }

    /// `true` also if it is forgotten already.
    fn forget(&self, used: &Url) -> bool {
        let mut address = lock(&self.address);
        match &*address {
            Address::Known { url, has_worked } if url == used => {
                let has_worked = *has_worked;
                *address = Address::Unknown;
                has_worked
            }
            _ => true,
        }
    }

    pub(crate) fn locate(&self, error: Error) -> Error {
        error.in_file(format_args!("{}: {}", self.repo(), self.path))
    }
}

fn next_request(rest: Range<u64>, byte_len: u64) -> Range<u64> {
    let most = if byte_len > LARGEST_WHOLE { PART } else { u64::MAX };
    rest.start..rest.end.min(rest.start.saturating_add(most))
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
        self.read_until(buf, offset, &AtomicBool::new(false)).map_err(to_io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_too_large_for_one_answer_are_requested_in_parts() {
        for byte_len in [0, 1, LARGEST_WHOLE] {
            assert_eq!(next_request(0..byte_len, byte_len), 0..byte_len);
        }
        for byte_len in [LARGEST_WHOLE + 1, 500_000_000_000] {
            let (mut at, mut parts) = (7, 0);
            while at < byte_len {
                let next = next_request(at..byte_len, byte_len);
                assert_eq!(next.start, at);
                assert!(next.end <= byte_len && next.end - at <= PART);
                (at, parts) = (next.end, parts + 1);
            }
            assert_eq!(parts, (byte_len - 7).div_ceil(PART));
            // A header is asked for as ever.
            assert_eq!(next_request(8..4096, byte_len), 8..4096);
        }
    }
}
