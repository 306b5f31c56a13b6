//! [`DigestOptions`]: digests, threads and progress.

use std::ops::ControlFlow;

use crate::format::parallel::{Progress, Work};

/// Options for computing, recording and verifying digests.
///
/// ```
/// use safetensors_core::digest::DigestOptions;
///
/// let options = DigestOptions::new().threads(2).require_digests(true);
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct DigestOptions {
    pub(crate) work: Work,
    pub(crate) require: bool,
    pub(crate) tensors: bool,
    /// `None`, the default, verifies a recorded hash and records none.
    pub(crate) sha256: Option<bool>,
}

impl Default for DigestOptions {
    fn default() -> Self {
        Self { work: Work::default(), require: false, tensors: true, sha256: None }
    }
}

impl DigestOptions {
    /// Makes the default options: threads by the environment variable `SAFETENSORS_THREADS`, else
    /// one a core, at most eight.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads; 0 for the default.
    pub fn threads(mut self, threads: usize) -> Self {
        self.work = self.work.threads(threads);
        self
    }

    /// Sets whether [`verify`](crate::digest::verify) fails with
    /// [`ErrorKind::NoDigest`](crate::ErrorKind::NoDigest) for a tensor without a recorded digest.
    /// Off by default.
    pub fn require_digests(mut self, require: bool) -> Self {
        self.require = require;
        self
    }

    /// Sets whether to verify or record the XXH3-128 of each tensor. On by default.
    pub fn tensors(mut self, tensors: bool) -> Self {
        self.tensors = tensors;
        self
    }

    /// Sets whether to verify or record the SHA-256 of all data, `modelspec.hash_sha256`, by
    /// another pass over it. By default, [`verify`](crate::digest::verify) checks a recorded one,
    /// and [`Edit::record_digests`](crate::edit::Edit::record_digests) records none.
    pub fn sha256(mut self, sha256: bool) -> Self {
        self.sha256 = Some(sha256);
        self
    }

    /// Calls `callback` about once per MiB that is read, and at the end, in any thread.
    /// [`ControlFlow::Break`] stops the work with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    ///
    /// ```
    /// use safetensors_core::digest::{self, DigestOptions};
    /// use safetensors_core::{ErrorKind, SafeTensors, SaveOptions, TensorView, serialize};
    /// use std::ops::ControlFlow;
    ///
    /// let file =
    ///     serialize([("w", TensorView::from_slice(&[2], &[1_u8, 2])?)], &SaveOptions::new())?;
    /// let file = SafeTensors::from_source(file)?;
    /// let tensors = [file.tensor("w")?];
    /// let options = DigestOptions::new().progress(|progress| {
    ///     println!("{} of {} bytes", progress.bytes_done, progress.bytes_total);
    ///     ControlFlow::Continue(())
    /// });
    /// digest::hash_tensors(&tensors, &options)?;
    ///
    /// let cancel = DigestOptions::new().progress(|_| ControlFlow::Break(()));
    /// let cancelled = digest::hash_tensors(&tensors, &cancel);
    /// assert!(matches!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn progress(
        mut self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.work = self.work.progress(callback);
        self
    }
}
