//! Progress on standard error: a bar with rate and time left, on a terminal only.

use std::ops::ControlFlow;
use std::sync::Once;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use safetensors_core::digest;

/// A bar that counts bytes. It can be moved on from any thread, and is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar of so many bytes. Nothing is drawn if standard error is no terminal.
    pub(crate) fn bytes(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        // The template is checked by a test.
        if let Ok(style) = style() {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// One that is never drawn, for work that takes no time.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// What moves the bar on while digests of bytes that it counts already are computed.
    pub(crate) fn digests(&self) -> impl Fn(digest::Progress) -> ControlFlow<()> + Send + Sync + use<> {
        let bar = self.0.clone();
        move |progress| {
            bar.inc(progress.bytes);
            ControlFlow::Continue(())
        }
    }

    /// The same for bytes that it does not count yet: they are added to its whole length when the first of them are read.
    pub(crate) fn more_digests(&self) -> impl Fn(digest::Progress) -> ControlFlow<()> + Send + Sync + use<> {
        let (bar, counted) = (self.0.clone(), Once::new());
        move |progress| {
            counted.call_once(|| bar.inc_length(progress.bytes_total));
            bar.inc(progress.bytes);
            ControlFlow::Continue(())
        }
    }

    /// Prints something while the bar is out of the way.
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
    let template =
        "{percent:>3}% {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    Ok(ProgressStyle::with_template(template)?.progress_chars("━━╌"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_template_is_well_formed() {
        assert!(super::style().is_ok());
    }
}
