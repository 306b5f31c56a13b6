//! A flag that stops work of several threads.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Result, cancelled};

/// Fails with `Cancelled` if the work is to stop.
pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(cancelled()) } else { Ok(()) }
}
