//! A flag that stops work of several threads.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ErrorKind, Result};

/// Fails with [`ErrorKind::Cancelled`] if the work is to stop.
pub(crate) fn check(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(ErrorKind::Cancelled.into()),
        false => Ok(()),
    }
}
