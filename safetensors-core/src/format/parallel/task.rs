//! [`Task`]: for whom a thread works.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads [enter](Task::enter) a task, so that code far below knows for whom it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task(u64);

thread_local! {
    static CURRENT: Cell<Task> = const { Cell::new(Task::NONE) };
}

impl Task {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const LAST: Self = Self(u64::MAX);

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Works on the task until the result is dropped.
    pub(crate) fn enter(self) -> InTask {
        InTask { before: CURRENT.replace(self), _of_thread: PhantomData }
    }
}

#[must_use]
pub(crate) struct InTask {
    before: Task,
    _of_thread: PhantomData<*const ()>,
}

impl Drop for InTask {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}
