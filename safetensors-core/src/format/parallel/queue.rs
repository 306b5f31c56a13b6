//! [`Queue`]: items that several threads take one by one.

use std::iter::Enumerate;
use std::sync::{Condvar, Mutex};
use std::thread;

pub(super) struct Queue<I> {
    state: Mutex<QueueState<I>>,
    /// How many items may be begun and not be done.
    ahead: usize,
    changed: Condvar,
}

struct QueueState<I> {
    items: Option<Enumerate<I>>,
    begun: usize,
}

impl<I: Iterator> Queue<I> {
    pub(super) fn new(items: I, ahead: usize) -> Self {
        let state = QueueState { items: Some(items.enumerate()), begun: 0 };
        Self { state: Mutex::new(state), ahead, changed: Condvar::new() }
    }

    /// Waits until an item may begin. `None` after the last, and after [`end`](Queue::end).
    pub(super) fn next(&self) -> Option<(usize, I::Item)> {
        // Making an item may panic, and poisons the lock. There are no more items then.
        let mut state = self.state.lock().ok()?;
        while state.items.is_some() && state.begun >= self.ahead {
            state = self.changed.wait(state).ok()?;
        }
        let item = state.items.as_mut()?.next()?;
        state.begun += 1;
        Some(item)
    }

    /// Lets another item begin.
    pub(super) fn done(&self) {
        let _ = self.state.lock().map(|mut state| state.begun -= 1);
        // All, because threads that find no item left make no room for the others.
        self.changed.notify_all();
    }

    /// Drops the items that no thread has begun.
    pub(super) fn end(&self) {
        let _ = self.state.lock().map(|mut state| state.items.take());
        self.changed.notify_all();
    }
}

/// Calls its function when it is dropped in a panic.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}
