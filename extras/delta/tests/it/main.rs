//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod chain;
mod destination;
mod example;
mod extra;
mod failures;
mod follow;
mod follow_files;
mod follow_racing;
mod followed;
mod hooked;
mod hostile;
mod linked;
#[cfg(target_os = "linux")]
mod memory;
mod refusals;
mod round_trip;
mod support;
