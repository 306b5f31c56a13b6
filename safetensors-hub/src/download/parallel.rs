//! [`each`]: files are worked on by several threads.

use std::sync::Mutex;
use std::thread;

use safetensors_core::ErrorKind;
use safetensors_core::framework::in_parallel;

use super::progress::Meter;
use crate::error::{Error, Result, cancelled};

/// Does `work` for each item on up to `threads` threads, and returns the results in the order of
/// the items. The first failure also stops the items that are worked on, and is the error.
pub(super) fn each<I: Sync, T: Send>(
    items: &[I],
    threads: usize,
    meter: &Meter,
    work: impl Fn(&I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let cause: Mutex<Option<Error>> = Mutex::new(None);
    let lock = || cause.lock().unwrap_or_else(|poison| poison.into_inner());
    let results = in_parallel(items, threads, |item, _: &mut ()| {
        let _end = OnPanic(meter);
        work(item).map_err(|error| {
            // The threads that a failure stops report that they were stopped.
            let is_cause = |old: &Error| !matches!(old.kind(), ErrorKind::Cancelled);
            let mut cause = lock();
            if !cause.as_ref().is_some_and(is_cause) {
                *cause = Some(error);
            }
            meter.fail();
            cancelled()
        })
    });
    let cause = lock().take();
    cause.map_or_else(|| results, Err)
}

/// Stops the transfers of the other threads, too, when a thread panics.
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
    use crate::ErrorKind;

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
                crate::error::check_stop(meter.stop())?;
                thread::sleep(Duration::from_millis(1));
            }
            #[allow(unreachable_code, reason = "the type of the result")]
            Ok(())
        });
        assert!(matches!(error.unwrap_err().other(), Some(ErrorKind::FileNotFound)));
    }
}
