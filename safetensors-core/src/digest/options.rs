//! [`DigestOptions`]: threads and progress, and how far the work has come.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ErrorKind, Result};

/// How digests are computed.
///
/// ```
/// use safetensors_core::digest::DigestOptions;
///
/// let options = DigestOptions::new().threads(2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DigestOptions {
    pub(super) threads: usize,
    pub(super) progress: Option<ProgressCallback>,
}

impl DigestOptions {
    /// As many threads as the environment variable `SAFETENSORS_THREADS` says, or else one a core, eight at most.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Has `callback` called after each piece that is read, 1 MiB at most, by the thread that read it. If it returns
    /// [`ControlFlow::Break`], the rest is not read and the work fails with [`ErrorKind::Cancelled`].
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use safetensors_core::digest::{self, DigestOptions};
    /// use safetensors_core::{ErrorKind, Limits, SafeTensors, SaveOptions, TensorView, serialize};
    ///
    /// let file = serialize([("w", TensorView::from_slice(&[2], &[1_u8, 2])?)], &SaveOptions::new())?;
    /// let file = SafeTensors::read_header(file, &Limits::default())?;
    /// let tensors = [file.tensor("w")?];
    /// let options = DigestOptions::new().progress(|progress| {
    ///     println!("{} of {} bytes", progress.bytes_done, progress.bytes_total);
    ///     ControlFlow::Continue(())
    /// });
    /// digest::tensors(&tensors, &options)?;
    ///
    /// let cancelled = digest::tensors(&tensors, &DigestOptions::new().progress(|_| ControlFlow::Break(())));
    /// assert!(matches!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[must_use]
    pub fn progress(mut self, callback: impl Fn(Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Self {
        self.progress = Some(ProgressCallback(Arc::new(callback)));
        self
    }
}

/// How far the computing of digests has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The bytes that were just read.
    pub bytes: u64,
    /// All bytes that have been read.
    pub bytes_done: u64,
    /// All bytes that are to be read. Those of a file that has a digest of each tensor and one of all data count twice.
    pub bytes_total: u64,
}

/// What is called with the [`Progress`].
#[derive(Clone)]
pub(super) struct ProgressCallback(pub(super) Arc<dyn Fn(Progress) -> ControlFlow<()> + Send + Sync>);

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressCallback")
    }
}

/// Counts the bytes that all threads have read.
#[derive(Debug)]
pub(super) struct Counter<'a> {
    done: AtomicU64,
    total: u64,
    callback: Option<&'a ProgressCallback>,
}

impl<'a> Counter<'a> {
    /// Nothing of `total` bytes has been read.
    pub(super) fn new(total: u64, callback: Option<&'a ProgressCallback>) -> Self {
        Self { done: AtomicU64::new(0), total, callback }
    }

    /// Counts bytes that were read, and says so; an error if the caller wants no more.
    pub(super) fn add(&self, bytes: u64) -> Result<()> {
        let bytes_done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let progress = Progress { bytes, bytes_done, bytes_total: self.total };
        match self.callback.map(|callback| callback.0(progress)) {
            Some(ControlFlow::Break(())) => Err(ErrorKind::Cancelled.into()),
            _ => Ok(()),
        }
    }
}
