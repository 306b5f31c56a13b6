//! [`DownloadProgress`]: how far a download has come. [`Meter`] counts it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Result, cancelled, check_stop};

/// How far a download has come.
///
/// Several threads report it, so a smaller number of bytes can be reported after a larger one. The
/// number also falls if bytes turn out to be wrong and are downloaded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadProgress<'a> {
    /// The bytes that are in the cache so far, including earlier ones.
    pub bytes_done: u64,
    /// The bytes of all files. An index comes first and alone, so the number grows once its shards
    /// are known.
    pub bytes_total: u64,
    /// The name of the file that the latest bytes belong to.
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

/// The callback is called once per this many bytes, and at the end of each file.
const STEP: u64 = 1 << 20;

/// Counts arriving bytes, and stops all threads if the callback asks for it.
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

    /// Returns the flag that stops all threads.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Stops all threads, because one has failed.
    pub(super) fn fail(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Adds to the bytes that are to come.
    pub(super) fn expect(&self, bytes: u64) {
        let add = |total: u64| Some(total.saturating_add(bytes));
        let _ = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Adds bytes that are there.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the callback asks for it, or another thread has failed.
    pub(super) fn add(&self, bytes: u64, file: &str) -> Result<()> {
        check_stop(&self.stop)?;
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        if before / STEP == before.wrapping_add(bytes) / STEP { Ok(()) } else { self.report(file) }
    }

    /// Subtracts bytes that are downloaded again.
    pub(super) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Calls the callback.
    ///
    /// # Errors
    ///
    /// `Cancelled` if it asks for it.
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
