//! The behaviour of a `VarBuilder` that candle's models rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod missing;
mod prefetching;
mod reading_ahead;
mod scaled;
mod sharing;
mod sources;
mod spy;
mod tensors;
mod threads;
mod trouble;

#[path = "../common/mod.rs"]
mod common;
