//! [`Upload`]: an object that becomes visible completely or not at all.

use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{PutPayload, PutResult, UploadPart};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::unfinished::{ABORT, Begun};
use crate::remote::object::Service;
use crate::remote::runtime::{ended_early, handle, run};

/// Bytes of a part. Stores want at least 5 MiB.
const PART: u64 = 8 << 20;

/// Stores accept 10,000; the header is not counted beforehand.
const PARTS: u64 = 9_000;

/// Parts sent at once. With [`PART`] this bounds the memory.
const AT_ONCE: usize = 8;

/// [`commit`](Upload::commit) makes the object visible; otherwise it is aborted.
pub(super) struct Upload {
    service: Arc<Service>,
    key: Key,
    part_len: usize,
    buffer: Vec<u8>,
    /// `None` until the first part is full, so that an earlier error makes no request.
    upload: Option<Begun>,
    parts: JoinSet<io::Result<()>>,
}

impl Upload {
    pub(super) fn new(service: Arc<Service>, key: Key, byte_len: u64) -> Self {
        let part_len = byte_len.div_ceil(PARTS).next_multiple_of(1 << 20).max(PART) as usize;
        let buffer = Vec::new();
        let parts = JoinSet::new();
        Self { service, key, part_len, buffer, upload: None, parts }
    }

    /// Waits until all bytes arrived. They are not visible yet.
    pub(super) fn close(&mut self) -> io::Result<()> {
        // An object without bytes has one part without bytes.
        if !self.buffer.is_empty() || self.upload.is_none() {
            self.send_part()?;
        }
        while !self.parts.is_empty() {
            self.wait_for_one()?;
        }
        self.buffer = Vec::new();
        Ok(())
    }

    pub(super) fn commit(mut self) -> io::Result<PutResult> {
        let Some(upload) = self.upload.take() else { return Err(ended_early()) };
        upload.complete(&self.service)
    }

    fn send_part(&mut self) -> io::Result<()> {
        if self.parts.len() == AT_ONCE {
            self.wait_for_one()?;
        }
        let upload = match self.upload.take() {
            Some(upload) => upload,
            None => Begun::new(&self.service, self.key.clone())?,
        };
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        let service = Arc::clone(&self.service);
        let parts = &mut self.parts;
        let spawn = |part: UploadPart| {
            let send = async move { part.await.map_err(|error| service.io(&error)) };
            Ok(parts.spawn_on(send, &handle()?))
        };
        self.upload.insert(upload).put_part(payload, spawn)
    }

    fn wait_for_one(&mut self) -> io::Result<()> {
        let mut parts = std::mem::take(&mut self.parts);
        let (parts, ended) = run(async move {
            let ended = parts.join_next().await;
            (parts, ended)
        })?;
        self.parts = parts;
        ended.map_or(Ok(()), |ended| ended.map_err(|_| ended_early())?)
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.part_len);
        }
        let len = bytes.len().min(self.part_len - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..len]);
        if self.buffer.len() == self.part_len {
            self.send_part()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        // A part that arrives after the upload was aborted would stay there.
        let mut parts = std::mem::take(&mut self.parts);
        let ended = async move { while parts.join_next().await.is_some() {} };
        let _ = run(async { timeout(ABORT, ended).await });
        upload.abort();
    }
}
