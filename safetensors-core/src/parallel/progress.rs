//! [`Progress`]: how far long work has come; and [`Meter`], which counts it and tells the caller.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::OnPanic;
use crate::error::{ErrorKind, Result};

/// How far a load, a save or the computing of digests has come.
///
/// Several threads tell of it, so a smaller number of bytes can be told after a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The bytes of tensors that are in memory, in their dtype there; or that have been written, in
    /// the dtype that they get; or that digests have been computed of.
    pub bytes_done: u64,
    /// All bytes that there are to do. In a file that gets a digest of each tensor and one of all
    /// data, each byte counts twice.
    pub bytes_total: u64,
    /// The name of the tensor, or of one of the tensors, that these bytes were of. Empty if they
    /// were of a whole file.
    pub tensor: &'a str,
}

/// The most bytes that are written before somebody is told.
pub(crate) const PIECE: usize = 4 << 20;

/// Fewer bytes than this are not worth telling, except the last ones: a file may have a hundred
/// thousand small tensors.
const STEP: u64 = 1 << 20;

type Callback = dyn Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync;

/// Counts the bytes that are done and tells the caller's callback, if there is one.
///
/// That of options only knows the callback; each piece of work counts with one made
/// [for it](Meter::for_total), whose clones count together.
#[derive(Clone, Default)]
pub(crate) struct Meter {
    callback: Option<Arc<Callback>>,
    count: Option<Arc<Count>>,
}

struct Count {
    done: AtomicU64,
    total: u64,
    cancelled: AtomicBool,
}

impl Meter {
    pub(crate) fn new(
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { callback: Some(Arc::new(callback)), count: None }
    }

    /// Whether there is somebody to tell.
    pub(crate) fn is_watched(&self) -> bool {
        self.callback.is_some()
    }

    /// The meter of work on so many bytes. One that counts for a larger work already, of which this
    /// is a part, goes on.
    pub(crate) fn for_total(&self, total: u64) -> Self {
        let new = || {
            Arc::new(Count { done: AtomicU64::new(0), total, cancelled: AtomicBool::new(false) })
        };
        Self {
            callback: self.callback.clone(),
            count: Some(self.count.clone().unwrap_or_else(new)),
        }
    }

    /// Counts bytes of a tensor that have been done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], now and from now on, once the callback says so, or has panicked in
    /// another thread. The bytes then do not count.
    pub(crate) fn add(&self, bytes: u64, tensor: &str) -> Result<()> {
        let (Some(callback), Some(count)) = (&self.callback, &self.count) else { return Ok(()) };
        self.check()?;
        let before = count.done.fetch_add(bytes, Ordering::Relaxed);
        let bytes_done = before + bytes;
        if before / STEP != bytes_done / STEP || bytes_done == count.total {
            let progress = Progress { bytes_done, bytes_total: count.total, tensor };
            let _cancel = OnPanic(|| count.cancelled.store(true, Ordering::Relaxed));
            if callback(progress).is_break() {
                count.cancelled.store(true, Ordering::Relaxed);
                self.take_back(bytes);
            }
        }
        self.check()
    }

    /// Takes back bytes that were counted and are not done after all.
    pub(crate) fn take_back(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.done.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Fails if the callback has ended the work.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.count {
            Some(count) if count.cancelled.load(Ordering::Relaxed) => {
                Err(ErrorKind::Cancelled.into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("is_watched", &self.is_watched()).finish_non_exhaustive()
    }
}
