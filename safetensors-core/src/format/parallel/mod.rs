//! Threads: [`in_parallel`] returns all results at the end, [`in_order`] one by one.

mod in_order;
pub(crate) mod progress;
mod queue;
mod task;
mod work;

use std::num::NonZeroUsize;
use std::sync::{LockResult, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

pub use in_order::{in_order, in_order_ahead};
pub use progress::{Meter, Progress};
pub(crate) use queue::OnPanic;
use queue::Queue;
pub(crate) use task::Task;
pub(crate) use work::Work;

use crate::format::error::Result;
use crate::format::trace::Span;

const VARIABLE: &str = "SAFETENSORS_THREADS";

// More threads gain nothing on local disks.
const MAX_DEFAULT_THREADS: usize = 8;

/// Does `work` for each item, and returns the results in order. Each thread passes its own `B`,
/// such as a buffer.
///
/// `threads` is 0 for [`default_threads`]. An error or a panic of `work` stops the threads after
/// their items, and continues in the caller. The error is the first in the order of the items,
/// whatever the threads' speed.
///
/// ```
/// use safetensors_core::framework::in_parallel;
///
/// let lengths = in_parallel(["up", "down"], 2, |name: &str, _: &mut ()| Ok(name.len()))?;
/// assert_eq!(lengths, [2, 4]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[doc(hidden)]
pub fn in_parallel<I, T: Send, B: Default>(
    items: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
    threads: usize,
    work: impl Fn(I, &mut B) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let items = items.into_iter();
    let threads = match items.len() {
        // One thread is enough, and looking up the default number would take longer than a little
        // work.
        len @ (0 | 1) => len,
        len => NonZeroUsize::new(threads).map_or_else(default_threads, usize::from).min(len),
    };
    let results: Mutex<Vec<Option<Result<T>>>> = Mutex::new(Vec::new());
    lock(&results).resize_with(items.len(), || None);
    let queue = Queue::new(items, usize::MAX);
    on_threads(threads, &|| {
        let _end = OnPanic(|| queue.end());
        let mut own = B::default();
        let mut done = Vec::new();
        while let Some((number, item)) = queue.next() {
            let result = work(item, &mut own);
            if result.is_err() {
                // All items before this one have been begun already, so the first error in order is
                // still found.
                queue.end();
            }
            done.push((number, result));
        }
        let mut results = lock(&results);
        done.into_iter().for_each(|(number, result)| results[number] = Some(result));
    });
    // After an error, later items may have no result.
    unpoisoned(results.into_inner()).into_iter().flatten().collect()
}

/// Does `work` on so many threads, of which one is the caller's. Its panic continues in the caller.
fn on_threads(threads: usize, work: &(dyn Fn() + Sync)) {
    let span = Span::current();
    let task = Task::current();
    let help = || {
        let _span = span.enter();
        let _task = task.enter();
        work();
    };
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, help).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        work();
        for other in others {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Returns `SAFETENSORS_THREADS` of the environment, or the number of cores, at most 8.
pub fn default_threads() -> usize {
    // The result is kept, because asking the system takes as long as reading a megabyte.
    static CORES: OnceLock<usize> = OnceLock::new();
    threads_of_environment().unwrap_or_else(|| {
        let cores = CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
        MAX_DEFAULT_THREADS.min(*cores)
    })
}

fn threads_of_environment() -> Option<usize> {
    let threads = std::env::var(VARIABLE).ok()?;
    threads.trim().parse().ok().map(NonZeroUsize::get)
}

/// Ignores poison: the value is consistent even if a thread has panicked.
#[doc(hidden)]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Ignores poison: the value is consistent even if a thread has panicked.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::format::error::{Error, ErrorKind};

    #[test]
    fn results_are_in_order_and_the_first_error_is_returned() {
        let nothing = in_parallel(0..0, 4, |_: usize, _: &mut ()| Ok(()));
        assert!(nothing.unwrap().is_empty());
        for count in [1, 2, 7, 8, 9, 100] {
            let now = AtomicUsize::new(0);
            let most = AtomicUsize::new(0);
            let done = in_parallel(0..count, 4, |item, _: &mut ()| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(((item * 7) % 5) as u64 * 100));
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(item)
            });
            assert_eq!(done.unwrap(), Vec::from_iter(0..count));
            assert!(most.into_inner() <= 4);

            // Later items fail sooner.
            let error = in_parallel(0..count, 4, |item, _: &mut ()| {
                if item < count / 2 {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(if item == count / 2 { 20 } else { 0 }));
                Err(Error::from(ErrorKind::TensorNotFound).in_tensor(&item.to_string()))
            });
            assert_eq!(error.unwrap_err().tensor(), Some((count / 2).to_string().as_str()));
        }
    }

    #[test]
    fn a_panic_stops_the_other_threads() {
        for panicking in [0, 7] {
            let done = AtomicUsize::new(0);
            let work = |item, _: &mut ()| {
                if item == panicking {
                    std::panic::resume_unwind(Box::new("of the work"));
                }
                thread::sleep(Duration::from_millis(2));
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            let all = || in_parallel(0..1000, 4, work);
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all)).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the work"));
            let done = done.into_inner();
            assert!(done < 100, "{done} of 1000 done all the same");
        }
    }

    #[test]
    fn each_thread_has_its_own_value() {
        let counted = in_parallel(0..100, 3, |_, seen: &mut usize| {
            *seen += 1;
            Ok(*seen)
        });
        let firsts = counted.unwrap().into_iter().filter(|&seen| seen == 1).count();
        assert!((1..=3).contains(&firsts), "{firsts}");
    }
}
