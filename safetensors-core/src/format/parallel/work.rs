//! [`Work`]: the threads and the progress callback of an operation.

use std::ops::ControlFlow;

use super::{Meter, Progress, in_parallel, threads_of_environment};
use crate::format::error::Result;

#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    threads: usize,
    progress: Meter,
}

impl Work {
    pub(crate) fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    pub(crate) fn progress(
        self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        Self { progress: Meter::new(callback), ..self }
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads
    }

    /// Sets them only if neither these options nor the environment do.
    pub(crate) fn unless_set(&self, threads: usize) -> Self {
        let is_set = self.threads > 0 || threads_of_environment().is_some();
        if is_set { self.clone() } else { self.clone().threads(threads) }
    }

    /// Makes all later operations count together.
    pub(crate) fn counting(self, total: u64) -> Self {
        Self { progress: self.progress.for_total(total), ..self }
    }

    /// Reports later operations as parts of a larger one.
    pub(crate) fn parts_of(self, total: u64) -> Self {
        Self { progress: self.progress.parts_of(total), ..self }
    }

    pub(crate) fn meter(&self, total: u64) -> Meter {
        self.progress.for_total(total)
    }

    pub(crate) fn each<I, T: Send, B: Default>(
        &self,
        items: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
        work: impl Fn(I, &mut B) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        in_parallel(items, self.threads, work)
    }
}
