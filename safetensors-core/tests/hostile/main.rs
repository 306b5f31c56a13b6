//! Hostile files and failing callbacks: messages stay short, limits are kept, and work stops after
//! a panic.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod formats;
mod limits;
mod messages;
mod panics;

#[path = "../support/mod.rs"]
mod support;
