//! [`Task`]: the task that a thread works on.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a task. A thread that begins one [enters](Task::enter) it, and so do the threads
/// that it starts, so that code far below knows for whom it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task(u64);

thread_local! {
    static CURRENT: Cell<Task> = const { Cell::new(Task::NONE) };
}

impl Task {
    /// No task, which comes before all tasks.
    pub(crate) const NONE: Self = Self(0);
    /// Comes after all tasks.
    pub(crate) const LAST: Self = Self(u64::MAX);

    /// Makes a task that no thread is in.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Lets the current thread work on the task until the result is dropped.
    pub(crate) fn enter(self) -> InTask {
        InTask { before: CURRENT.replace(self), _of_thread: PhantomData }
    }
}

/// A task that the current thread is in.
#[must_use]
pub(crate) struct InTask {
    before: Task,
    /// It stays in its thread.
    _of_thread: PhantomData<*const ()>,
}

impl Drop for InTask {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}
