//! Files written bit by bit, from several threads, and front to back into anything that takes
//! bytes.
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
