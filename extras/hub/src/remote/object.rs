//! [`Object`]: one version of an object in a store, and its bytes as they arrive.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use safetensors_core::framework::Span;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bounded::{LISTING, together};
use super::error::{CHANGED, Secrets};
use super::runtime::run;

pub(super) const IN_FLIGHT: usize = 32;

/// Bytes of all requests of a store that wait to be copied.
const ARRIVED: usize = 32 << 20;

/// Bytes passed on together, so that the waiting thread wakes less often. The client gets smaller
/// pieces.
const TOGETHER: usize = 512 << 10;

/// Without progress. With an ETag the store itself repeats requests, with one count for the entire
/// body, so these get one more chance.
const ATTEMPTS: [u32; 2] = [5, 1];

/// Doubles with each attempt.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Service {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) secrets: Secrets,
    pub(super) most_copied: u64,
    /// A permit for each running request.
    requests: Arc<Semaphore>,
    /// A permit for each byte that waits to be copied.
    arrived: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        secrets: Secrets,
        most_copied: u64,
    ) -> Arc<Self> {
        let requests = Arc::new(Semaphore::new(IN_FLIGHT));
        let arrived = Arc::new(Semaphore::new(ARRIVED));
        Arc::new(Self { store, secrets, most_copied, requests, arrived })
    }

    pub(super) async fn begin(&self) -> io::Result<OwnedSemaphorePermit> {
        self.requests.clone().acquire_owned().await.map_err(io::Error::other)
    }

    pub(super) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let service = Arc::clone(self);
        run(async move {
            let _permit = service.begin().await?;
            request.await.map_err(|error| service.io(&error))
        })
        .flatten()
    }

    pub(super) fn head(self: &Arc<Self>, key: Path) -> io::Result<Option<ObjectMeta>> {
        let store = Arc::clone(&self.store);
        found(self.ask(async move { store.head(&key).await }))
    }

    pub(super) fn list(self: &Arc<Self>, key: Path) -> io::Result<ListResult> {
        let store = Arc::clone(&self.store);
        self.ask(async move { together(LISTING, store.list_with_delimiter(Some(&key))).await })
    }

    pub(super) fn io(&self, error: &object_store::Error) -> io::Error {
        self.secrets.io(error)
    }
}

pub(super) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Default)]
pub(super) struct Arrived {
    pieces: Vec<Bytes>,
    len: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Arrived {
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|bytes| &bytes[..])
    }

    fn add(&mut self, bytes: Bytes, permit: OwnedSemaphorePermit) {
        self.len += bytes.len();
        self.pieces.push(bytes);
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
    }
}

pub(super) trait Take: Send {
    /// Returns `false` if no more are wanted.
    fn take(&mut self, arrived: Arrived) -> bool;
}

/// Every answer is compared with it, so that bytes of two versions never mix.
#[derive(Debug)]
pub(super) struct Object {
    service: Arc<Service>,
    path: Path,
    meta: ObjectMeta,
}

impl Object {
    /// By one request for at most `most` bytes.
    pub(super) async fn open(
        service: Arc<Service>,
        path: Path,
        most: u64,
    ) -> io::Result<(Self, Vec<u8>)> {
        let permit = service.begin().await?;
        // Opening needs these bytes anyway. A request for the metadata first would be a second wait
        // for each file.
        let asked = GetOptions { range: Some(GetRange::Bounded(0..most)), ..GetOptions::default() };
        let answer = match service.store.get_opts(&path, asked).await {
            Ok(answer) => answer,
            // An object without bytes has no range.
            Err(error) if may_be_empty(&error) => {
                return match service.store.head(&path).await {
                    Ok(meta) if meta.size == 0 => Ok((Self { service, path, meta }, Vec::new())),
                    _ => Err(service.io(&error)),
                };
            }
            Err(error) => return Err(service.io(&error)),
        };
        let meta = answer.meta.clone();
        let range = answer.range.clone();
        if range != (0..most.min(meta.size)) {
            return Err(lied(&(0..most.min(meta.size)), &range));
        }
        let object = Self { service, path, meta };
        let mut start = Vec::with_capacity((range.end - range.start) as usize);
        object.read(range, Some(answer.into_stream()), &mut start).await?;
        drop(permit);
        Ok((object, start))
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.meta.size
    }

    pub(super) fn version(&self) -> String {
        version_of(&self.meta)
    }

    /// Returns `true` if changes may keep the version: with a weak ETag, or a time in seconds.
    pub(super) fn may_change_unseen(&self) -> bool {
        self.strong_tag().is_none()
    }

    pub(super) async fn fetch(&self, range: Range<u64>, to: &mut impl Take) -> io::Result<()> {
        let _permit = self.service.begin().await?;
        self.read(range, None, to).await
    }

    /// Requests the rest of a broken body. `body` is the first answer, if present.
    async fn read(
        &self,
        mut range: Range<u64>,
        mut body: Option<BoxStream<'static, object_store::Result<Bytes>>>,
        to: &mut impl Take,
    ) -> io::Result<()> {
        let mut attempt = 0;
        let mut arrived = Arrived::default();
        loop {
            let span = Span::request(|| self.path.to_string());
            span.record_bytes(range.end - range.start);
            let mut arriving = match body.take() {
                Some(body) => body,
                None => self.ask(range.clone()).await?,
            };
            let error = loop {
                match arriving.next().await {
                    Some(Ok(bytes)) if bytes.is_empty() => {}
                    Some(Ok(bytes)) => {
                        if bytes.len() as u64 > range.end - range.start {
                            let message = "the server sent more bytes than were asked for";
                            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                        }
                        range.start += bytes.len() as u64;
                        attempt = 0;
                        let held = self.service.arrived.clone();
                        let permits = bytes.len().min(ARRIVED) as u32;
                        let permit = held.acquire_many_owned(permits).await;
                        arrived.add(bytes, permit.map_err(io::Error::other)?);
                        if arrived.len >= TOGETHER && !to.take(std::mem::take(&mut arrived)) {
                            return Ok(());
                        }
                    }
                    Some(Err(error)) => break Some(self.service.io(&error)),
                    None if range.is_empty() => break None,
                    None => break Some(cut(&range)),
                }
            };
            if arrived.len > 0 && !to.take(std::mem::take(&mut arrived)) {
                return Ok(());
            }
            let Some(error) = error else { return Ok(()) };
            attempt += 1;
            if attempt > ATTEMPTS[usize::from(self.meta.e_tag.is_some())] {
                return Err(error);
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
        }
    }

    async fn ask(
        &self,
        range: Range<u64>,
    ) -> io::Result<BoxStream<'static, object_store::Result<Bytes>>> {
        let asked = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: self.strong_tag(),
            version: self.meta.version.clone(),
            ..GetOptions::default()
        };
        let answer = self.service.store.get_opts(&self.path, asked).await;
        let answer = answer.map_err(|error| self.service.io(&error))?;
        // A server may ignore the condition.
        if version_of(&answer.meta) != self.version() || answer.meta.size != self.meta.size {
            return Err(io::Error::other(CHANGED));
        }
        if answer.range != range {
            return Err(lied(&range, &answer.range));
        }
        Ok(answer.into_stream())
    }

    /// A weak ETag never matches a condition.
    fn strong_tag(&self) -> Option<String> {
        self.meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"))
    }
}

/// Status 416 or, in memory, a text.
fn may_be_empty(error: &object_store::Error) -> bool {
    let text = error.to_string();
    text.contains("416 Range Not Satisfiable") || text.contains("Wanted range")
}

/// The ETag or, without one, length and time.
pub(super) fn version_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(tag) => unquoted(tag).into(),
        None => format!("{} bytes, changed {}", meta.size, meta.last_modified.to_rfc3339()),
    }
}

/// Azure omits the quotes in listings. A weak ETag keeps them.
pub(super) fn unquoted(tag: &str) -> &str {
    tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag)
}

fn lied(expected: &Range<u64>, found: &Range<u64>) -> io::Error {
    let message = format!("asked for the bytes {expected:?}, and the server sent {found:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn cut(rest: &Range<u64>) -> io::Error {
    let message = format!("the server ended its answer before the bytes {rest:?}");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

impl Take for Vec<u8> {
    fn take(&mut self, arrived: Arrived) -> bool {
        arrived.pieces().for_each(|bytes| self.extend_from_slice(bytes));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_without_quotes() {
        for (tag, version) in [
            ("\"abc\"", "abc"),
            ("abc", "abc"),
            ("W/\"abc\"", "W/\"abc\""),
            ("\"\"", ""),
            ("\"", "\""),
        ] {
            assert_eq!(unquoted(tag), version);
        }
        let time = "2026-01-02T03:04:05Z".parse().unwrap();
        let meta = |e_tag: Option<&str>, size| ObjectMeta {
            location: Path::from("a"),
            last_modified: time,
            size,
            e_tag: e_tag.map(str::to_owned),
            version: None,
        };
        assert_eq!(version_of(&meta(Some("\"abc\""), 1)), version_of(&meta(Some("abc"), 2)));
        assert_eq!(version_of(&meta(None, 7)), "7 bytes, changed 2026-01-02T03:04:05+00:00");
    }
}
