//! [`Gate`]: lets threads run ahead by a number of items at most.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::parallel::OnPanic;

/// Counts the items that have been begun and not taken yet.
pub(super) struct Gate {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    inside: usize,
    /// Whether no more items are wanted.
    is_over: bool,
}

impl Gate {
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until another item may begin. Returns false if no more are wanted.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.lock();
        while state.inside >= self.most && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.inside += 1;
        !state.is_over
    }

    /// An item has been taken.
    pub(super) fn leave(&self) {
        self.lock().inside -= 1;
        self.changed.notify_one();
    }

    /// Lets everyone pass, because the work ends.
    pub(super) fn open(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Opens the gate if the thread panics while this lives. Nobody would take the items otherwise,
    /// and the others would wait for ever.
    pub(super) fn opens_on_panic(&self) -> OnPanic<impl Fn()> {
        OnPanic(|| self.open())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
