//! [`Progress`]: a report on a long operation. [`Meter`] counts it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::OnPanic;
use crate::format::error::{ErrorKind, Result};

/// The progress of a load, a save or the computing of digests.
///
/// Several threads report it, so `bytes_done` may fall between reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Bytes done: in memory for a load, in the file for a save, hashed for digests.
    pub bytes_done: u64,
    /// Bytes to be done. Digests of each tensor and of all data count each byte twice.
    pub bytes_total: u64,
    /// A tensor of the latest bytes; empty for an entire file.
    pub tensor: &'a str,
}

/// The most bytes written between two calls of the callback.
pub(crate) const PIECE: usize = 4 << 20;

// A call for each of a hundred thousand small tensors would be slow.
const STEP: u64 = 1 << 20;

type Callback = dyn Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync;

/// Counts bytes and calls the callback, if there is one. Options hold only the callback: each
/// operation makes a meter [with a total](Meter::for_total).
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Meter {
    callback: Option<Arc<Callback>>,
    count: Option<Arc<Count>>,
    whole: Option<Arc<Whole>>,
}

struct Count {
    done: AtomicU64,
    total: u64,
    cancelled: AtomicBool,
}

/// Several operations, which can be cancelled one by one.
struct Whole {
    /// Bytes of an operation that failed stay.
    done: AtomicU64,
    total: u64,
}

impl Whole {
    /// Returns the bytes done, at most the total, and the total: bytes can be read again.
    fn add(&self, bytes: u64) -> (u64, u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        (done.min(self.total), self.total)
    }
}

impl Meter {
    pub(crate) fn new(
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { callback: Some(Arc::new(callback)), count: None, whole: None }
    }

    pub(crate) fn after(
        &self,
        first: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        let callback = self.callback.clone();
        Self::new(move |progress| {
            first(progress)?;
            callback.as_ref().map_or(ControlFlow::Continue(()), |callback| callback(progress))
        })
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.callback.is_some()
    }

    /// Makes a meter for an operation, or for the larger one that this meter counts.
    pub(crate) fn for_total(&self, total: u64) -> Self {
        let new = || {
            Arc::new(Count { done: AtomicU64::new(0), total, cancelled: AtomicBool::new(false) })
        };
        Self {
            callback: self.callback.clone(),
            count: Some(self.count.clone().unwrap_or_else(new)),
            whole: self.whole.clone(),
        }
    }

    /// Reports later operations as parts of a larger one.
    pub(crate) fn parts_of(self, total: u64) -> Self {
        Self { whole: Some(Arc::new(Whole { done: AtomicU64::new(0), total })), ..self }
    }

    /// Adds bytes of a tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] if the callback cancels, or has cancelled or panicked before. Then
    /// the bytes are not counted.
    pub fn add(&self, bytes: u64, tensor: &str) -> Result<()> {
        let (Some(callback), Some(count)) = (&self.callback, &self.count) else { return Ok(()) };
        self.check()?;
        let before = count.done.fetch_add(bytes, Ordering::Relaxed);
        let bytes_done = before + bytes;
        let whole = self.whole.as_ref().map(|whole| whole.add(bytes));
        if before / STEP != bytes_done / STEP || bytes_done == count.total {
            let (bytes_done, bytes_total) = whole.unwrap_or((bytes_done, count.total));
            let progress = Progress { bytes_done, bytes_total, tensor };
            let _cancel = OnPanic(|| count.cancelled.store(true, Ordering::Relaxed));
            if callback(progress).is_break() {
                count.cancelled.store(true, Ordering::Relaxed);
                self.take_back(bytes);
            }
        }
        self.check()
    }

    /// Does nothing to a larger operation.
    pub(crate) fn take_back(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.done.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn parts() -> (Meter, Arc<Mutex<Vec<u64>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let meter = Meter::new(move |progress| {
            assert_eq!(progress.bytes_total, 16 * STEP);
            telling.lock().unwrap().push(progress.bytes_done / STEP);
            ControlFlow::Continue(())
        });
        (meter.parts_of(16 * STEP), told)
    }

    #[test]
    fn parts_at_the_same_time_and_parts_that_fail_are_counted_as_they_are_read() {
        let (meter, told) = parts();
        let [first, second] = [8, 8].map(|mib| meter.for_total(mib * STEP));
        for (part, mib) in [(&first, 3), (&second, 1), (&first, 5), (&second, 2)] {
            part.add(mib * STEP, "w").unwrap();
        }
        // The rest of the second part is never read.
        drop(second);
        meter.for_total(4 * STEP).add(4 * STEP, "w").unwrap();
        assert_eq!(*told.lock().unwrap(), [3, 4, 9, 11, 15]);
        // Bytes that are read again do not exceed the total.
        meter.for_total(8 * STEP).add(8 * STEP, "w").unwrap();
        assert_eq!(told.lock().unwrap().last(), Some(&16));
    }

    #[test]
    fn a_cancelled_part_does_not_reduce_the_total_progress() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let meter = Meter::new(move |progress| {
            let mut told = telling.lock().unwrap();
            told.push(progress.bytes_done / STEP);
            if told.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let meter = meter.parts_of(8 * STEP);
        let part = meter.for_total(4 * STEP);
        part.add(STEP, "w").unwrap();
        assert!(matches!(part.add(STEP, "w").unwrap_err().kind(), ErrorKind::Cancelled));
        meter.for_total(4 * STEP).add(STEP, "w").unwrap();
        assert_eq!(*told.lock().unwrap(), [1, 2, 3]);
    }
}
