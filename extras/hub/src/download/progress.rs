//! [`DownloadProgress`]: the progress of a download. [`Meter`] counts it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Result, cancelled, check_stop};

/// The progress of a download.
///
/// Several threads report it, so `bytes_done` can fall, as it does if wrong bytes are downloaded
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadProgress<'a> {
    /// The bytes in the cache so far, with earlier ones.
    pub bytes_done: u64,
    /// The bytes of all files. It grows once the shards of an index are known.
    pub bytes_total: u64,
    /// The file of the latest bytes.
    pub file: &'a str,
}

#[derive(Clone)]
pub(super) struct Callback(
    pub(super) Arc<dyn Fn(DownloadProgress<'_>) -> ControlFlow<()> + Send + Sync>,
);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// Bytes between calls of the callback, which also follows each file.
const STEP: u64 = 1 << 20;

pub(super) struct Meter {
    callback: Option<Callback>,
    done: AtomicU64,
    total: AtomicU64,
    stop: AtomicBool,
}

impl Meter {
    pub(super) fn new(callback: Option<Callback>) -> Self {
        let done = AtomicU64::new(0);
        let total = AtomicU64::new(0);
        Self { callback, done, total, stop: AtomicBool::new(false) }
    }

    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    pub(super) fn fail(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn expect(&self, bytes: u64) {
        let add = |total: u64| Some(total.saturating_add(bytes));
        let _ = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Fails with `Cancelled` if the callback asks for it, or a thread has failed.
    pub(super) fn add(&self, bytes: u64, file: &str) -> Result<()> {
        check_stop(&self.stop)?;
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        if before / STEP == before.wrapping_add(bytes) / STEP { Ok(()) } else { self.report(file) }
    }

    pub(super) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn report(&self, file: &str) -> Result<()> {
        let Some(Callback(callback)) = &self.callback else { return Ok(()) };
        let bytes_done = self.done.load(Ordering::Relaxed);
        let bytes_total = self.total.load(Ordering::Relaxed);
        if callback(DownloadProgress { bytes_done, bytes_total, file }).is_continue() {
            return Ok(());
        }
        self.fail();
        Err(cancelled())
    }
}
