//! [`DigestOptions`]: threads and progress.

use std::ops::ControlFlow;

use crate::parallel::{Progress, Work};

/// The options for computing digests.
///
/// ```
/// use safetensors_core::digest::DigestOptions;
///
/// let options = DigestOptions::new().threads(2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DigestOptions {
    pub(crate) work: Work,
}

impl DigestOptions {
    /// The default options. The number of threads is that of the environment variable
    /// `SAFETENSORS_THREADS`, or else one for each core, at most eight.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.work = self.work.threads(threads);
        self
    }

    /// Sets a callback, which is called about once for each MiB that is read, and at the end. The
    /// thread that has read the bytes calls it. If it returns [`ControlFlow::Break`], the rest is
    /// not read and the work fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
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
    #[must_use]
    pub fn progress(
        mut self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.work = self.work.progress(callback);
        self
    }
}
