//! What the tests of several packages share.
//!
//! The unit tests of the core cannot use what implements a trait of the core here: they are compiled
//! with a second copy of the core, whose traits are others to the compiler. Its integration tests
//! can.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub mod asynchronous;
pub mod dcp;
pub mod files;
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
