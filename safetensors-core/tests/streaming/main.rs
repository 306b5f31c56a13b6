//! Files that are written piece by piece, from several threads, and front to back into any writer.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod appending;
#[cfg(target_os = "linux")]
mod full_disk;
mod layouts;
mod pipes;
mod writing;

#[path = "../support/mod.rs"]
mod support;
