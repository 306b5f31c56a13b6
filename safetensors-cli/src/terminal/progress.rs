//! Progress on standard error: a bar with rate and time left, on a terminal only.

use std::ops::ControlFlow;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use safetensors_core as core;

use crate::terminal::pager;

/// A bar that counts bytes. Any thread can advance and cancel it. Dropping it removes it from the
/// terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar, AtomicBool);

impl Progress {
    /// A bar that is drawn only on a terminal without a pager.
    pub(crate) fn bytes(total: u64) -> Self {
        if pager::is_running() {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        // The template is checked by a test.
        if let Ok(style) = style() {
            bar.set_style(style);
        }
        Self(bar, AtomicBool::new(false))
    }

    pub(crate) fn hidden() -> Self {
        Self::silent(0)
    }

    /// A bar that is never drawn; [`fraction`](Self::fraction) reports it.
    pub(crate) fn silent(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        Self(bar, AtomicBool::new(false))
    }

    /// Returns the part of the bytes that is done, from 0 to 1.
    pub(crate) fn fraction(&self) -> f64 {
        let total = self.0.length().unwrap_or_default().max(1);
        (self.0.position() as f64 / total as f64).min(1.0)
    }

    pub(crate) fn cancel(&self) {
        self.1.store(true, Ordering::Relaxed);
    }

    /// Fails with [`core::ErrorKind::Cancelled`] after [`cancel`](Self::cancel).
    pub(crate) fn check(&self) -> core::Result<()> {
        if self.1.load(Ordering::Relaxed) { Err(core::ErrorKind::Cancelled.into()) } else { Ok(()) }
    }

    pub(crate) fn add_total(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// A callback for an operation of core with bytes in the bar's total.
    pub(crate) fn counted(
        &self,
    ) -> impl Fn(core::Progress<'_>) -> ControlFlow<()> + Send + Sync + use<> {
        let (bar, done) = (self.0.clone(), AtomicU64::new(0));
        move |progress| {
            // Several threads report, and not always in order.
            let before = done.fetch_max(progress.bytes_done, Ordering::Relaxed);
            bar.inc(progress.bytes_done.saturating_sub(before));
            ControlFlow::Continue(())
        }
    }

    /// A callback for an operation of core, which adds its bytes to the bar's total.
    pub(crate) fn uncounted(
        &self,
    ) -> impl Fn(core::Progress<'_>) -> ControlFlow<()> + Send + Sync + use<> {
        let (bar, once, counted) = (self.0.clone(), Once::new(), self.counted());
        move |progress| {
            once.call_once(|| bar.inc_length(progress.bytes_total));
            counted(progress)
        }
    }

    pub(crate) fn adding(&self) -> impl Fn(u64) + Send + Sync + use<> {
        let bar = self.0.clone();
        move |bytes| bar.inc(bytes)
    }

    #[cfg(any(feature = "remote", feature = "sign"))]
    pub(crate) fn following(&self) -> impl Fn(u64, u64) + Send + Sync + use<> {
        let bar = self.0.clone();
        move |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Hides the bar while `print` runs.
    pub(crate) fn suspended<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style() -> Result<ProgressStyle, indicatif::style::TemplateError> {
    let template = "{percent:>3}% {wide_bar} {decimal_bytes} of {decimal_total_bytes}, \
        {decimal_bytes_per_sec}, {eta} left";
    Ok(ProgressStyle::with_template(template)?.progress_chars("━━╌"))
}

#[cfg(test)]
mod tests {
    use safetensors_core::digest::{self, DigestOptions};
    use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};

    use super::*;

    #[test]
    fn the_template_is_well_formed() {
        assert!(style().is_ok());
    }

    #[test]
    fn bytes_are_counted_once_and_their_total_too_if_it_was_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let data = vec![0_u8; 3 << 20];
        let tensors = [("w", TensorView::from_slice(&[3 << 20], &data).unwrap())];
        save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let (known, unknown) = (Progress::bytes(3 << 20), Progress::bytes(0));
        digest::hash_files(&checkpoint, &DigestOptions::new().progress(known.counted())).unwrap();
        for _ in 0..2 {
            digest::hash_files(&checkpoint, &DigestOptions::new().progress(unknown.uncounted()))
                .unwrap();
        }
        assert_eq!((known.0.position(), known.0.length()), (3 << 20, Some(3 << 20)));
        assert_eq!((unknown.0.position(), unknown.0.length()), (6 << 20, Some(6 << 20)));
    }
}
