//! [`Queue`]: the items that several threads take one by one.

use std::iter::Enumerate;
use std::sync::Mutex;
use std::thread;

/// Items in order, each for the thread that asks next.
pub(super) struct Queue<I>(Mutex<Option<Enumerate<I>>>);

impl<I: Iterator> Queue<I> {
    pub(super) fn new(items: I) -> Self {
        Self(Mutex::new(Some(items.enumerate())))
    }

    /// The next item with its number. `None` after the last, and after [`end`](Queue::end).
    pub(super) fn next(&self) -> Option<(usize, I::Item)> {
        // Making an item may panic, and poisons the lock. There are no more items then.
        self.0.lock().ok()?.as_mut()?.next()
    }

    /// Drops the items that are left, so that no thread begins another.
    pub(super) fn end(&self) {
        let _ = self.0.lock().map(|mut items| items.take());
    }
}

/// Calls its function when it is dropped during a panic.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}
