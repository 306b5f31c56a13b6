//! [`Meter`]: how far a save has come, and who is to be told.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{ErrorKind, Progress, Result};

/// The most bytes that are written before somebody is told.
pub(super) const PIECE: usize = 4 << 20;

/// Fewer bytes than this are not worth telling, except the last ones: a file may have a hundred thousand small tensors.
const STEP: u64 = 1 << 20;

type Callback = dyn Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync;

/// Counts the bytes that a save has written and tells the caller's callback.
///
/// That of [`SaveOptions`](super::SaveOptions) only knows the callback; each save counts with one made [for
/// it](Meter::for_total), whose clones count together.
#[derive(Clone)]
pub(crate) struct Meter {
    callback: Arc<Callback>,
    count: Option<Arc<Count>>,
}

struct Count {
    done: AtomicU64,
    total: u64,
    cancelled: AtomicBool,
}

impl Meter {
    pub(super) fn new(callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        Self { callback: Arc::new(callback), count: None }
    }

    /// The meter of a save of so many bytes. One that counts for a larger save already, of which this is a part, goes on.
    pub(crate) fn for_total(&self, total: u64) -> Self {
        let new = || Arc::new(Count { done: AtomicU64::new(0), total, cancelled: AtomicBool::new(false) });
        Self { callback: Arc::clone(&self.callback), count: Some(self.count.clone().unwrap_or_else(new)) }
    }

    /// Counts bytes that have been written of a tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], now and from now on, once the callback says so.
    pub(super) fn add(&self, bytes: u64, tensor: &str) -> Result<()> {
        let Some(count) = &self.count else { return Ok(()) };
        let before = count.done.fetch_add(bytes, Ordering::Relaxed);
        let bytes_done = before + bytes;
        if before / STEP != bytes_done / STEP || bytes_done == count.total {
            let progress = Progress { bytes_done, bytes_total: count.total, tensor };
            if (self.callback)(progress).is_break() {
                count.cancelled.store(true, Ordering::Relaxed);
            }
        }
        self.check()
    }

    /// Takes back bytes that were counted and do not count as written after all.
    pub(super) fn take_back(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.done.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Fails if the callback has ended the save.
    pub(super) fn check(&self) -> Result<()> {
        match &self.count {
            Some(count) if count.cancelled.load(Ordering::Relaxed) => Err(ErrorKind::Cancelled.into()),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}
