//! [`Racing`]: a store in memory with requests that fail, or that something else precedes.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, UploadPart,
};

use crate::remote::error::Secrets;
use crate::remote::object::Service;
use crate::remote::place::RemotePlace;

/// Runs before or after a call: with its name and number, and the store.
type Hook = dyn Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync;

/// A store in which something else happens before or after some calls.
pub(in crate::remote::save) struct Racing {
    pub(in crate::remote::save) inner: Arc<InMemory>,
    pub(in crate::remote::save) hooks: Arc<Hooks>,
    /// Whether it can write on a condition.
    pub(in crate::remote::save) knows_conditions: bool,
    /// Whether listings have no ETags, as on some servers.
    pub(in crate::remote::save) hides_etags: bool,
    /// Whether each write is repeated, because the answer to the first request was lost.
    pub(in crate::remote::save) repeats_writes: bool,
    /// The writes that have failed.
    failed_writes: Mutex<Vec<(Key, PutPayload, PutOptions)>>,
}

/// Functions that run around the calls.
pub(in crate::remote::save) struct Hooks {
    inner: Arc<InMemory>,
    pub(in crate::remote::save) calls: Mutex<Vec<String>>,
    before: Box<Hook>,
    after: Box<Hook>,
}

impl Racing {
    pub(in crate::remote::save) fn new(
        inner: Arc<InMemory>,
        before: impl Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync + 'static,
        after: impl Fn(&str, usize, &InMemory) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (before, after) = (Box::new(before), Box::new(after));
        let hooks = Hooks { inner: inner.clone(), calls: Mutex::default(), before, after };
        Self {
            inner,
            hooks: hooks.into(),
            knows_conditions: true,
            hides_etags: false,
            repeats_writes: false,
            failed_writes: Mutex::default(),
        }
    }

    /// Writes that have failed reach the store after all, if their conditions still hold.
    pub(in crate::remote::save) fn deliver_failed_writes(&self) {
        for (key, payload, options) in self.failed_writes.lock().unwrap().drain(..) {
            let _ = now(self.inner.put_opts(&key, payload, options));
        }
    }
}

impl Hooks {
    /// Makes a call, if nothing makes it fail before. It may also fail when it is done.
    async fn call<T>(&self, name: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let number = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(name.to_owned());
            calls.iter().filter(|call| *call == name).count()
        };
        // It may save itself, which needs the threads of the runtime.
        tokio::task::block_in_place(|| (self.before)(name, number, &self.inner))?;
        let done = call.await?;
        tokio::task::block_in_place(|| (self.after)(name, number, &self.inner))?;
        Ok(done)
    }
}

/// An upload to a [`Racing`] store.
#[derive(Debug)]
struct RacingUpload {
    inner: Box<dyn MultipartUpload>,
    hooks: Arc<Hooks>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

#[async_trait::async_trait]
impl MultipartUpload for RacingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, hooks) = (self.inner.put_part(data), Arc::clone(&self.hooks));
        Box::pin(async move { hooks.call("part", part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let hooks = Arc::clone(&self.hooks);
        hooks.call("complete", self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

impl fmt::Debug for Racing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Racing")
    }
}

impl fmt::Display for Racing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Racing")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Racing {
    async fn put_opts(
        &self,
        location: &Key,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if !self.knows_conditions && opts.mode != PutMode::Overwrite {
            let (operation, implementer) = ("a conditional put".into(), "racing".into());
            return Err(Error::NotImplemented { operation, implementer });
        }
        let put = || self.inner.put_opts(location, payload.clone(), opts.clone());
        if self.repeats_writes {
            put().await?;
        }
        let answer = self.hooks.call("put", put()).await;
        if answer.is_err() {
            let write = (location.clone(), payload.clone(), opts.clone());
            self.failed_writes.lock().unwrap().push(write);
        }
        answer
    }

    async fn put_multipart_opts(
        &self,
        location: &Key,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(location, opts);
        let inner = self.hooks.call("multipart", begun).await?;
        Ok(Box::new(RacingUpload { inner, hooks: Arc::clone(&self.hooks) }))
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        let name = if options.head { "head" } else { "get" };
        self.hooks.call(name, self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Key>>,
    ) -> BoxStream<'static, Result<Key>> {
        let (inner, hooks) = (Arc::clone(&self.inner), Arc::clone(&self.hooks));
        let deleted = async move {
            let delete = inner.delete_stream(locations).try_collect::<Vec<_>>();
            match hooks.call("delete", delete).await {
                Ok(keys) => keys.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        Box::pin(stream::once(deleted).flat_map(stream::iter))
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (listed, hooks) = (self.inner.list(prefix), Arc::clone(&self.hooks));
        let listed = async move {
            match hooks.call("list below", listed.try_collect::<Vec<_>>()).await {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        Box::pin(stream::once(listed).flat_map(stream::iter))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        let listed = self.hooks.call("list", self.inner.list_with_delimiter(prefix)).await;
        let mut listed = listed?;
        if self.hides_etags {
            listed.objects.iter_mut().for_each(|meta| meta.e_tag = None);
        }
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> Result<()> {
        self.hooks.call("copy", self.inner.copy_opts(from, to, options)).await
    }
}

/// Returns the directory `m` of a store.
pub(in crate::remote::save) fn place(store: Arc<dyn ObjectStore>) -> RemotePlace {
    RemotePlace {
        service: Service::new(store, Secrets::default(), u64::MAX),
        root: "memory:///".into(),
        shown: "memory:///m".into(),
        key: Key::from("m"),
        lists: true,
    }
}

/// Returns the error of a request that fails.
pub(in crate::remote::save) fn failure() -> Error {
    Error::Generic { store: "racing", source: "it fails".into() }
}

/// Runs a future of the store in memory, which never waits.
pub(in crate::remote::save) fn now<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).unwrap()
}

pub(in crate::remote::save) fn write(store: &InMemory, key: &str, text: &str) {
    now(store.put(&Key::from(key), text.to_owned().into())).unwrap();
}

pub(in crate::remote::save) fn text(store: &InMemory, key: &str) -> Option<Vec<u8>> {
    let got = now(store.get(&Key::from(key))).ok()?;
    Some(now(got.bytes()).unwrap().to_vec())
}
