//! What a hostile file or a failing callback may cost: short messages whatever a header says, limits,
//! and no work that goes on after a panic.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod formats;
mod limits;
mod messages;
mod panics;

#[path = "../support/mod.rs"]
mod support;
