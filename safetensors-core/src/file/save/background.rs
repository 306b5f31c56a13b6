//! [`BackgroundSaver`]: a thread that saves while the program continues.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

use super::SaveOptions;
use crate::format::error::Result;
use crate::format::parallel::Progress;

/// Saves in a thread, one save after another, while the program continues.
///
/// Takes any function that saves with [`SaveOptions`] or [`ShardOptions`](crate::ShardOptions),
/// such as [`save()`](super::save()), `save_sharded`, or an adapter's. It must own its tensors:
/// pass copies, or tensors that nobody changes. They are dropped when the save ends.
///
/// | event | effect |
/// |---|---|
/// | a second save begins while one runs | [`start`](Self::start) waits, so the files are in order, and only one set of tensors is held |
/// | a save fails | the next [`start`](Self::start) or [`wait`](Self::wait) returns the error; the path keeps its old file |
/// | [`cancel`](Self::cancel) | the save fails with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and the path keeps its old file |
/// | the saver is dropped | it waits for the save; an error is lost |
/// | the process ends or is killed | the path keeps its old file, and a later save removes a temporary one |
///
/// ```
/// use safetensors_core::save::BackgroundSaver;
/// use safetensors_core::{Checkpoint, SaveOptions, ShardOptions, TensorBuf, save, save_sharded};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("state.safetensors");
/// let mut state = vec![0_f32; 1000];
/// let mut saver = BackgroundSaver::new();
/// for step in 0..10 {
///     state[step] += 1.0;
///     if !saver.is_saving() {
///         let copy = TensorBuf::from_vec(vec![1000], state.clone())?;
///         let (path, options) = (path.clone(), SaveOptions::new());
///         saver.start(&options, move |options| save(path, [("state", copy)], options))?;
///     }
/// }
/// saver.wait()?;
/// assert_eq!(Checkpoint::open(&path)?.len(), 1);
///
/// // In shards.
/// let (directory, options) = (dir.path().join("sharded"), ShardOptions::new());
/// let copy = TensorBuf::from_vec(vec![1000], state)?;
/// saver.start(&options, move |options| {
///     save_sharded(directory, [("state", copy)], options).map(drop)
/// })?;
/// saver.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct BackgroundSaver {
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<Result<()>>,
    watch: Arc<Watch>,
}

/// Shared by a save's thread and its saver.
#[derive(Debug, Default)]
struct Watch {
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    cancelled: AtomicBool,
}

impl BackgroundSaver {
    /// Makes a saver without a thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a save in a thread, after any earlier one has ended.
    ///
    /// The options' progress callback runs in the threads of the save. A panic of `save` continues
    /// in the thread that [waits](Self::wait).
    ///
    /// # Errors
    ///
    /// Errors of the earlier save, and [`ErrorKind::Io`](crate::ErrorKind::Io) for no more threads.
    /// Then the new save is not begun.
    pub fn start<O: AsMut<SaveOptions> + Clone + Send + 'static>(
        &mut self,
        options: &O,
        save: impl FnOnce(&O) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.wait()?;
        let watch = Arc::new(Watch::default());
        let watched = watch.clone();
        let mut options = options.clone();
        let progress = &mut options.as_mut().progress;
        *progress = progress.clone().after(move |progress| watched.hear(progress));
        let thread = Builder::new().name("safetensors-save".into()).spawn(move || save(&options));
        self.running = Some(Running { thread: thread?, watch });
        Ok(())
    }

    /// Returns whether a save runs.
    pub fn is_saving(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.thread.is_finished())
    }

    /// Returns the progress of the latest save, until it is waited for, without a tensor.
    pub fn progress(&self) -> Option<Progress<'static>> {
        let watch = &self.running.as_ref()?.watch;
        let [bytes_done, bytes_total] =
            [&watch.bytes_done, &watch.bytes_total].map(|bytes| bytes.load(Ordering::Relaxed));
        Some(Progress { bytes_done, bytes_total, tensor: "" })
    }

    /// Cancels the save without waiting. Each thread still writes at most 4 MiB. A save with all
    /// its bytes written cannot be cancelled.
    pub fn cancel(&self) {
        if let Some(running) = &self.running {
            running.watch.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the save has ended, if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the save, once; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn wait(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        running.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for BackgroundSaver {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.thread.join();
        }
    }
}

impl AsMut<SaveOptions> for SaveOptions {
    fn as_mut(&mut self) -> &mut SaveOptions {
        self
    }
}

impl Watch {
    fn hear(&self, progress: Progress<'_>) -> ControlFlow<()> {
        // Several threads report, and not in order.
        self.bytes_done.fetch_max(progress.bytes_done, Ordering::Relaxed);
        self.bytes_total.store(progress.bytes_total, Ordering::Relaxed);
        let is_cancelled = self.cancelled.load(Ordering::Relaxed);
        if is_cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_the_save_continues_in_the_thread_that_waits() {
        let mut saver = BackgroundSaver::new();
        let panics = |_: &SaveOptions| resume_unwind(Box::new("of the save"));
        saver.start(&SaveOptions::new(), panics).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| saver.wait())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the save"));
        // A dropped saver reports its error to no one.
        saver.start(&SaveOptions::new(), panics).unwrap();
    }
}
