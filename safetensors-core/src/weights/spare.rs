//! [`Spare`]: memory that is used again, because fresh memory costs more than reading into it.

use std::sync::Mutex;

use crate::format::parallel::lock;

// Enough for the tiles of 2 MiB that the threads of most machines read at once.
const MOST_KEPT: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// Returns memory with any content.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        let mut spare = lock(&self.0);
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
        let mut spare = lock(&self.0);
        let kept: usize = spare.iter().map(Vec::capacity).sum();
        if bytes.capacity() <= MOST_KEPT.saturating_sub(kept) {
            spare.push(bytes);
        }
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_memory_has_a_limit() {
        let (spare, len) = (Spare::default(), MOST_KEPT / 4);
        (0..9).for_each(|_| spare.put(Vec::with_capacity(len)));
        let kept: usize = lock(&spare.0).iter().map(Vec::capacity).sum();
        assert!((len..=MOST_KEPT).contains(&kept));
        assert_eq!(spare.take(3).len(), 3);
    }
}
