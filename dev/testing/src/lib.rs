//! Parts that the tests of several packages share.
//!
//! The unit tests of the core cannot use implementations of the core's traits from here: they are
//! compiled with a second copy of the core, and the compiler takes its traits for others. Its
//! integration tests can.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub mod asynchronous;
pub mod dcp;
pub mod experts;
pub mod files;
pub mod framework;
pub mod lora;
pub mod memory;
pub mod optimizer;
pub mod process;
pub mod quantized;
pub mod read_at;
pub mod saves;
#[cfg(feature = "spans")]
pub mod spans;
pub mod tables;
pub mod tensors;
