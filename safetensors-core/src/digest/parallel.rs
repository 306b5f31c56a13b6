//! Doing many things on several threads, with one buffer a thread.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::Result;

/// More threads than this gain nothing on local disks.
const MAX_DEFAULT_THREADS: usize = 8;

/// Does `work` for each number below `count`, begun in order, and returns the results in order.
///
/// `threads` is how many to use; 0 for one a core, eight at most. The first failure stops all threads. If several fail,
/// the error is the one of the lowest number, so that it does not depend on the threads' speed.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, &mut Vec<u8>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let cores = || thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_THREADS);
    let threads = NonZeroUsize::new(threads).map_or_else(cores, usize::from).min(count);
    let next = AtomicUsize::new(0);
    let run = || {
        let mut buffer = Vec::new();
        let mut results = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return results;
            }
            let result = work(number, &mut buffer);
            if result.is_err() {
                // Nothing is left for the other threads to begin. What comes before this number has been begun already.
                next.store(count, Ordering::Relaxed);
            }
            results.push((number, result));
        }
    };
    let mut results = thread::scope(|scope| {
        // The calling thread is one of them.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}
