//! [`each`]: works on items in several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use safetensors_core::ErrorKind;
use safetensors_core::framework::in_parallel;
use safetensors_core::lock;

use crate::error::{Error, Result, cancelled};

/// Returns the results in order. The first failure is the error, and sets `stop` to end other work.
pub(crate) fn each<I, T: Send>(
    items: impl IntoIterator<Item = I, IntoIter: ExactSizeIterator + Send>,
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let cause: Mutex<Option<Error>> = Mutex::new(None);
    let results = in_parallel(items, threads, |item, _: &mut ()| {
        let _end = OnPanic(stop);
        work(item).map_err(|error| {
            // The threads that a failure stops report that they were stopped.
            let is_cause = |old: &Error| !matches!(old.kind(), ErrorKind::Cancelled);
            let mut cause = lock(&cause);
            if !cause.as_ref().is_some_and(is_cause) {
                *cause = Some(error);
            }
            stop.store(true, Ordering::Relaxed);
            cancelled()
        })
    });
    let cause = lock(&cause).take();
    cause.map_or_else(|| results, Err)
}

struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn results_are_in_order_and_the_cause_of_a_failure_is_returned() {
        let items: Vec<u64> = (0..50).collect();
        let stop = AtomicBool::new(false);
        let doubled = each(&items, 7, &stop, |item| Ok(item * 2)).unwrap();
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());

        let error = each(&items, 7, &stop, |item| {
            if *item == 3 {
                thread::sleep(Duration::from_millis(10));
                return Err(ErrorKind::FileNotFound.into());
            }
            loop {
                crate::error::check_stop(&stop)?;
                thread::sleep(Duration::from_millis(1));
            }
            #[allow(unreachable_code, reason = "the type of the result")]
            Ok(())
        });
        assert!(matches!(error.unwrap_err().other(), Some(ErrorKind::FileNotFound)));
    }
}
