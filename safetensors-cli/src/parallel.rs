//! Does work on many items with several threads, and takes the results in the order of the items.
//!
//! The core's loads share work among threads in another way. They know all items beforehand, keep
//! the results until the end, and work in the calling thread, too. Here items are made as threads
//! become free, and only the calling thread takes results, as they come: it writes to standard
//! output, whose lock belongs to one thread.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, mpsc};
use std::thread;

use safetensors_core::framework::default_threads;

use crate::report::wrong_usage;
use crate::text;

/// Refuses a number of threads in the environment that core would take no notice of.
pub(crate) fn check_environment() -> anyhow::Result<()> {
    const VARIABLE: &str = "SAFETENSORS_THREADS";
    match std::env::var_os(VARIABLE) {
        Some(threads) => match threads.to_str().map(|it| it.trim().parse::<NonZeroUsize>()) {
            Some(Ok(_)) => Ok(()),
            _ => Err(wrong_usage(format!(
                "{VARIABLE} should be a number of threads of at least 1, found \"{}\"",
                text::name(&threads.to_string_lossy())
            ))),
        },
        None => Ok(()),
    }
}

/// Calls `work` on each item, on several threads. Calls `take` with each result in the order of the
/// items, as soon as all earlier results are taken.
///
/// If `take` fails, no more work starts, and the error is returned. If `work` panics, no more work
/// starts, and the panic continues in this thread.
///
/// An item is made only when a thread is free to work on it, so there may be any number of them.
pub(crate) fn in_order<I: Send, R: Send, E>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    work: impl Fn(&I) -> R + Sync,
    take: impl FnMut(I, R) -> Result<(), E>,
) -> Result<(), E> {
    in_order_with(items, || (), |(), item| work(item), take)
}

/// [`in_order`] for work that needs memory. Each thread makes its own with `own`, and passes it to
/// each call of `work`.
pub(crate) fn in_order_with<I: Send, R: Send, E, O>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    own: impl Fn() -> O + Sync,
    work: impl Fn(&mut O, &I) -> R + Sync,
    mut take: impl FnMut(I, R) -> Result<(), E>,
) -> Result<(), E> {
    let items = items.into_iter();
    let most = items.size_hint().1.unwrap_or(usize::MAX);
    let queue = Mutex::new(Some(items.enumerate()));
    // No thread works, and so panics, while it holds the lock: the lock cannot be poisoned.
    let next = || queue.lock().ok()?.as_mut()?.next();
    let end = || {
        let _ = queue.lock().map(|mut queue| queue.take());
    };
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        let worker = || {
            let (sender, next, work, own, end) = (sender.clone(), &next, &work, &own, &end);
            move || {
                let _end = OnPanic(end);
                let mut own = own();
                while let Some((i, item)) = next() {
                    let result = work(&mut own, &item);
                    // The receiver is gone once `take` has failed.
                    if sender.send((i, item, result)).is_err() {
                        return;
                    }
                }
            }
        };
        // If the system refuses to start a thread, fewer threads do the work, or this one alone.
        let started = (0..default_threads().min(most))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, worker()).ok())
            .count();
        if started == 0 {
            let mut own = own();
            while let Some((_, item)) = next() {
                let result = work(&mut own, &item);
                take(item, result)?;
            }
            return Ok(());
        }
        drop(sender);
        let (mut early, mut expected) = (BTreeMap::new(), 0);
        // The channel closes when all work is done. It closes earlier only if a thread has
        // panicked. The scope passes that panic on.
        for (i, item, result) in results {
            early.insert(i, (item, result));
            while let Some((item, result)) = early.remove(&expected) {
                expected += 1;
                if let Err(error) = take(item, result) {
                    end();
                    return Err(error);
                }
            }
        }
        Ok(())
    })
}

/// Calls a function when it is dropped by a panic.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
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
        let slow_start = |&&i: &&u64| {
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
        assert_eq!(in_order([0_u8; 0], |_| (), |_, ()| Err(1)), Ok(()));
    }

    #[test]
    fn a_panic_ends_the_work() {
        let done = AtomicUsize::new(0);
        let work = |&i: &u64| {
            if i == 3 {
                std::panic::resume_unwind(Box::new("of the work"));
            }
            thread::sleep(Duration::from_millis(2));
            done.fetch_add(1, Ordering::Relaxed)
        };
        let all = || in_order(0..1000_u64, work, |_, _| Ok::<_, ()>(()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(all)).is_err());
        let done = done.into_inner();
        assert!(done < 200, "{done} of 1000 done all the same");
    }

    #[test]
    fn an_error_ends_the_work() {
        let items: Vec<u64> = (0..1000).collect();
        let done = AtomicUsize::new(0);
        let slow = |_: &&u64| {
            thread::sleep(Duration::from_millis(10));
            done.fetch_add(1, Ordering::Relaxed)
        };
        let stopped = in_order(&items, slow, |&i, _| if i == 3 { Err(i) } else { Ok(()) });
        assert_eq!(stopped, Err(3));
        let done = done.into_inner();
        assert!((4..200).contains(&done), "{done} of 1000");
    }
}
