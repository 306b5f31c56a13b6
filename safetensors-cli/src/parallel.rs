//! Many pieces of work on several threads, with the results taken in the order of the work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// More threads than this gain nothing on local disks.
const MAX_THREADS: usize = 8;

/// The threads that work is shared among.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Does `work` on each item, several at a time, and gives the results to `take` in the order of the items, each as soon as it and
/// those before it are there. If `take` fails, no more work is begun and its error is the outcome.
pub(crate) fn in_order<T: Sync, R: Send, E>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        for _ in 0..threads().min(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { return };
                    // Nobody listens any more after `take` has failed.
                    if sender.send((i, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        for (expected, item) in items.iter().enumerate() {
            while !early.contains_key(&expected) {
                // The channel closes early only if a thread has panicked, which the scope passes on.
                let Ok((i, result)) = results.recv() else { return Ok(()) };
                early.insert(i, result);
            }
            if let Some(result) = early.remove(&expected)
                && let Err(error) = take(item, result)
            {
                next.store(items.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_an_error_ends_the_work() {
        let items: Vec<u64> = (0..1000).collect();
        let slow_start = |&i: &u64| {
            if i.is_multiple_of(100) {
                thread::sleep(std::time::Duration::from_millis(2));
            }
            i * 2
        };
        let mut taken = Vec::new();
        let all: Result<(), ()> = in_order(&items, slow_start, |_, result| {
            taken.push(result);
            Ok(())
        });
        assert!(all.is_ok() && taken.iter().enumerate().all(|(i, &result)| result == 2 * i as u64));
        assert_eq!(taken.len(), 1000);
        let done = AtomicUsize::new(0);
        let stopped =
            in_order(&items, |_| done.fetch_add(1, Ordering::Relaxed), |&i, _| if i == 3 { Err(i) } else { Ok(()) });
        assert_eq!(stopped, Err(3));
        assert!(done.load(Ordering::Relaxed) <= 1000);
    }
}
