//! Many pieces of work on several threads, with the results taken in the order of the work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use safetensors_core::default_threads;

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
        let worker = || {
            let (sender, next, work) = (sender.clone(), &next, &work);
            move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { return };
                    // Nobody listens any more after `take` has failed.
                    if sender.send((i, work(item))).is_err() {
                        return;
                    }
                }
            }
        };
        // If the system has no more threads to give, fewer do the work, or this one alone.
        let started = (0..default_threads().min(items.len()))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, worker()).ok())
            .count();
        if started == 0 {
            return items.iter().try_for_each(|item| take(item, work(item)));
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_order() {
        let items: Vec<u64> = (0..1000).collect();
        let slow_start = |&i: &u64| {
            if i.is_multiple_of(100) {
                thread::sleep(Duration::from_millis(2));
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
        assert_eq!(in_order(&[] as &[u8], |_| (), |_, ()| Err(1)), Ok(()));
    }

    #[test]
    fn an_error_ends_the_work() {
        let items: Vec<u64> = (0..1000).collect();
        let done = AtomicUsize::new(0);
        let slow = |_: &u64| {
            thread::sleep(Duration::from_millis(10));
            done.fetch_add(1, Ordering::Relaxed)
        };
        let stopped = in_order(&items, slow, |&i, _| if i == 3 { Err(i) } else { Ok(()) });
        assert_eq!(stopped, Err(3));
        let done = done.into_inner();
        assert!((4..200).contains(&done), "{done} of 1000");
    }
}
