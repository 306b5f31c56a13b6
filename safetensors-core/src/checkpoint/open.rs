//! Opening the shards of a checkpoint, several at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::Result;

/// The most shards that are opened at once.
const MAX_THREADS: usize = 8;

/// Opens the shards 0 to `count` and returns them in this order.
///
/// What is waited for is mostly the disk or the network, so this does not depend on the number of cores.
///
/// # Errors
///
/// Of all errors that of the first shard, whichever came first in time.
pub(super) fn open_all<T: Send>(count: usize, open: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    if count <= 1 {
        return (0..count).map(open).collect();
    }
    let next = AtomicUsize::new(0);
    let opened = Mutex::new(Vec::with_capacity(count));
    let work = || loop {
        let shard = next.fetch_add(1, Ordering::Relaxed);
        if shard >= count {
            return;
        }
        let result = open(shard);
        if result.is_err() {
            // Shards are handed out in order: all before this one are in hand, and those after it no longer matter.
            next.store(count, Ordering::Relaxed);
        }
        // A thread that panicked while it held the lock takes the panic to the caller by itself.
        opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((shard, result));
    };
    thread::scope(|scope| {
        // The calling thread is one of them.
        let others: Vec<_> = (1..count.min(MAX_THREADS)).map(|_| scope.spawn(work)).collect();
        work();
        for other in others {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let mut opened = opened.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    opened.sort_unstable_by_key(|(shard, _)| *shard);
    opened.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Error, ErrorKind};

    #[test]
    fn in_order_and_the_first_error() {
        assert!(open_all::<()>(0, |_| Err(ErrorKind::TensorNotFound.into())).unwrap().is_empty());
        for count in [1, 2, 7, 8, 9, 100] {
            let now = AtomicUsize::new(0);
            let most = AtomicUsize::new(0);
            let opened = open_all(count, |shard| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(((shard * 7) % 5) as u64 * 100));
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(shard)
            });
            assert_eq!(opened.unwrap(), Vec::from_iter(0..count));
            assert!(most.into_inner() <= MAX_THREADS);

            // Later shards fail sooner.
            let error = open_all::<()>(count, |shard| {
                if shard < count / 2 {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(if shard == count / 2 { 20 } else { 0 }));
                Err(Error::from(ErrorKind::TensorNotFound).in_tensor(&shard.to_string()))
            });
            assert_eq!(error.unwrap_err().tensor(), Some((count / 2).to_string().as_str()));
        }
    }
}
