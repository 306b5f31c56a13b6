//! [`Work`]: by how many threads work is done, and who is told how far it has come.

use std::ops::ControlFlow;

use super::{Meter, Progress, in_parallel};
use crate::error::Result;

/// What the options of loads and digests have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    threads: usize,
    progress: Meter,
}

impl Work {
    /// Works with so many threads; 0 for the default.
    pub(crate) fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Tells `callback` how far the work has come. It may cancel it.
    pub(crate) fn progress(
        self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { progress: Meter::new(callback), ..self }
    }

    /// How many threads are asked for; 0 for the default.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads
    }

    /// Counts so many bytes over all work that is done with the result.
    pub(crate) fn counting(self, total: u64) -> Self {
        Self { progress: self.progress.for_total(total), ..self }
    }

    /// What counts the bytes that are done, of so many.
    pub(crate) fn meter(&self, total: u64) -> Meter {
        self.progress.for_total(total)
    }

    /// Does `work` for each item, as [`in_parallel`] does.
    pub(crate) fn each<I, T: Send, B: Default>(
        &self,
        items: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
        work: impl Fn(I, &mut B) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        in_parallel(items, self.threads, work)
    }
}
