//! [`each`]: files are worked on by several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::progress::Meter;
use crate::error::{Error, ErrorKind, Result};

/// Does `work` for each item on up to `threads` threads, and returns the results in the order of
/// the items. The first failure stops all threads, and is the error.
pub(super) fn each<I: Sync, T: Send>(
    items: &[I],
    threads: usize,
    meter: &Meter,
    work: impl Fn(&I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let first: Mutex<Option<Error>> = Mutex::new(None);
    let run = || {
        let mut results = Vec::new();
        // A panic stops the others too.
        let _end = OnPanic(meter);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return results };
            match work(item) {
                Ok(result) => results.push((number, result)),
                Err(error) => {
                    let mut first = first.lock().unwrap_or_else(|poison| poison.into_inner());
                    // The threads that a failure stops report that they were stopped.
                    let is_cause = |old: &Error| !matches!(old.kind(), ErrorKind::Cancelled);
                    if !first.as_ref().is_some_and(is_cause) {
                        *first = Some(error);
                    }
                    meter.fail();
                    return results;
                }
            }
        }
    };
    let mut results = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len()))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, run).ok())
            .collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    if let Some(error) = first.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        return Err(error);
    }
    results.sort_unstable_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

struct OnPanic<'a>(&'a Meter);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_in_order_and_the_cause_of_a_failure() {
        let items: Vec<u64> = (0..50).collect();
        let meter = Meter::new(None);
        let doubled = each(&items, 7, &meter, |item| Ok(item * 2)).unwrap();
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());

        let error = each(&items, 7, &meter, |item| {
            if *item == 3 {
                thread::sleep(Duration::from_millis(10));
                return Err(ErrorKind::FileNotFound.into());
            }
            loop {
                crate::stop::check(meter.stop())?;
                thread::sleep(Duration::from_millis(1));
            }
            #[allow(unreachable_code, reason = "the type of the result")]
            Ok(())
        });
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::FileNotFound));
    }
}
