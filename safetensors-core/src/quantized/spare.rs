//! [`Spare`]: memory for codes that is used again. Fresh memory costs more than reading into it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that nothing is in any more. All weights of a checkpoint share them.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// Memory of this length with any content.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        let mut spare = self.lock();
        match spare.iter().position(|bytes| bytes.capacity() >= len) {
            Some(place) => {
                let mut bytes = spare.swap_remove(place);
                bytes.resize(len, 0);
                bytes
            }
            None => {
                // The new buffer takes its place, so that no more are kept than were used at once.
                spare.pop();
                drop(spare);
                vec![0; len]
            }
        }
    }

    pub(super) fn put(&self, bytes: Vec<u8>) {
        self.lock().push(bytes);
    }

    /// Frees all memory.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// The list is whole even if a thread has panicked.
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
