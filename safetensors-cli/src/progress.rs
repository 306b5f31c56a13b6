//! Progress on standard error: a bar with rate and time left, on a terminal only.

use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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

    /// What core calls while it loads or saves.
    pub(crate) fn callback(
        &self,
    ) -> impl Fn(safetensors_core::Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static {
        let bar = self.0.clone();
        move |progress| {
            // Several threads tell of their work, not always in order.
            bar.set_position(bar.position().max(progress.bytes_done));
            ControlFlow::Continue(())
        }
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
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
