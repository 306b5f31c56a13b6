//! [`in_order`]: results in order, while later items are worked on.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::queue::{OnPanic, Queue};
use super::{Task, default_threads};
use crate::format::trace::Span;

/// Calls `work` on several threads, and `take` with the results, in order and in the calling
/// thread. Each thread passes its own `B`, such as a buffer, to `work`.
///
/// An item is made when a thread is free, so there may be any number of them. `threads` is 0 for
/// [`default_threads`]. An error of `take` and a panic of `work` stop the threads, and continue in
/// the caller.
///
/// ```
/// use safetensors_core::framework::in_order;
///
/// let mut lengths = Vec::new();
/// in_order(["up", "down"], 2, |name, _: &mut ()| name.len(), |name, length| {
///     lengths.push((name, length));
///     Ok::<(), std::fmt::Error>(())
/// })?;
/// assert_eq!(lengths, [("up", 2), ("down", 4)]);
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[doc(hidden)]
pub fn in_order<I: Send, R: Send, B: Default, E>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    threads: usize,
    work: impl Fn(&I, &mut B) -> R + Sync,
    take: impl FnMut(I, R) -> Result<(), E>,
) -> Result<(), E> {
    in_order_ahead(items, threads, usize::MAX, work, take)
}

/// Like [`in_order`], with at most `ahead` items that are begun and not yet taken.
#[doc(hidden)]
pub fn in_order_ahead<I: Send, R: Send, B: Default, E>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    threads: usize,
    ahead: usize,
    work: impl Fn(&I, &mut B) -> R + Sync,
    mut take: impl FnMut(I, R) -> Result<(), E>,
) -> Result<(), E> {
    let items = items.into_iter();
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let threads = NonZeroUsize::new(threads).map_or_else(default_threads, usize::from).min(most);
    let workers = Workers { queue: Queue::new(items, ahead), work };
    thread::scope(|scope| {
        // A panic of `take` must not leave threads that wait for it.
        let _end = OnPanic(|| workers.queue.end());
        let (sender, results) = mpsc::channel();
        let start = |_| {
            let span = Span::current();
            let task = Task::current();
            let workers = &workers;
            let sender = sender.clone();
            let work = move || {
                let _span = span.enter();
                let _task = task.enter();
                workers.run(&sender);
            };
            thread::Builder::new().spawn_scoped(scope, work).ok()
        };
        let started = (0..threads).map_while(start).count();
        drop(sender);
        if started == 0 { workers.alone(&mut take) } else { workers.take_all(results, &mut take) }
    })
}

struct Workers<I, W> {
    queue: Queue<I>,
    work: W,
}

struct Done<I, R> {
    number: usize,
    item: I,
    result: R,
}

impl<I: Iterator, W> Workers<I, W> {
    /// Works in one of several threads.
    fn run<R, B: Default>(&self, results: &Sender<Done<I::Item, R>>)
    where
        W: Fn(&I::Item, &mut B) -> R,
    {
        let _end = OnPanic(|| self.queue.end());
        let mut own = B::default();
        while let Some((number, item)) = self.queue.next() {
            let result = (self.work)(&item, &mut own);
            // The receiver is gone once `take` has failed.
            if results.send(Done { number, item, result }).is_err() {
                return;
            }
        }
    }

    /// Works in the calling thread, if no other could be started.
    fn alone<R, B: Default, E>(
        &self,
        take: &mut impl FnMut(I::Item, R) -> Result<(), E>,
    ) -> Result<(), E>
    where
        W: Fn(&I::Item, &mut B) -> R,
    {
        let mut own = B::default();
        while let Some((_, item)) = self.queue.next() {
            let result = (self.work)(&item, &mut own);
            take(item, result)?;
            self.queue.done();
        }
        Ok(())
    }

    fn take_all<R, E>(
        &self,
        results: Receiver<Done<I::Item, R>>,
        take: &mut impl FnMut(I::Item, R) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut early = BTreeMap::new();
        let mut expected = 0;
        // The channel closes when all work is done. It closes earlier only if a thread has
        // panicked. The scope passes that panic on.
        for Done { number, item, result } in results {
            early.insert(number, (item, result));
            while let Some((item, result)) = early.remove(&expected) {
                expected += 1;
                if let Err(error) = take(item, result) {
                    self.queue.end();
                    return Err(error);
                }
                self.queue.done();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_order() {
        let items: Vec<u64> = (0..1000).collect();
        let slow_start = |&&i: &&u64, _: &mut ()| {
            if i.is_multiple_of(100) {
                thread::sleep(Duration::from_millis(2));
            }
            i * 2
        };
        let mut taken = Vec::new();
        let all: Result<(), ()> = in_order(&items, 0, slow_start, |_, result| {
            taken.push(result);
            Ok(())
        });
        assert!(all.is_ok() && taken.iter().enumerate().all(|(i, &result)| result == 2 * i as u64));
        assert_eq!(taken.len(), 1000);
        assert_eq!(in_order([0_u8; 0], 0, |_, _: &mut ()| (), |_, ()| Err(1)), Ok(()));
    }

    #[test]
    fn a_panic_ends_the_work() {
        let done = AtomicUsize::new(0);
        let work = |&i: &u64, _: &mut ()| {
            if i == 3 {
                std::panic::resume_unwind(Box::new("of the work"));
            }
            thread::sleep(Duration::from_millis(2));
            done.fetch_add(1, Ordering::Relaxed)
        };
        let all = || in_order(0..1000_u64, 4, work, |_, _| Ok::<_, ()>(()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(all)).is_err());
        let done = done.into_inner();
        assert!(done < 200, "{done} of 1000 done all the same");
    }

    #[test]
    fn work_runs_ahead_so_far_and_a_panic_ends_the_wait_for_room() {
        for (threads, ahead) in [(1, 1), (4, 1), (4, 3), (3, 100)] {
            let begun = AtomicUsize::new(0);
            let work = |&i: &usize, _: &mut ()| {
                begun.fetch_add(1, Ordering::SeqCst);
                i
            };
            let take = |panics_at: usize| {
                begun.store(0, Ordering::SeqCst);
                let mut taken = 0;
                let all = in_order_ahead(0..100, threads, ahead, work, |_, i| {
                    assert!(begun.load(Ordering::SeqCst) <= taken + ahead, "{threads} {ahead}");
                    taken += 1;
                    if i == panics_at {
                        std::panic::resume_unwind(Box::new("of taking"));
                    }
                    Ok::<_, ()>(())
                });
                assert_eq!((all, taken), (Ok(()), 100));
            };
            take(100);
            let panics = std::panic::AssertUnwindSafe(|| take(5));
            let panic = std::panic::catch_unwind(panics).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"of taking"));
        }
    }

    #[test]
    fn an_error_ends_the_work() {
        let items: Vec<u64> = (0..1000).collect();
        let done = AtomicUsize::new(0);
        let slow = |_: &&u64, _: &mut ()| {
            thread::sleep(Duration::from_millis(10));
            done.fetch_add(1, Ordering::Relaxed)
        };
        let stopped = in_order(&items, 4, slow, |&i, _| if i == 3 { Err(i) } else { Ok(()) });
        assert_eq!(stopped, Err(3));
        let done = done.into_inner();
        assert!((4..200).contains(&done), "{done} of 1000");
    }
}
