//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod lent;
#[cfg(target_os = "linux")]
mod memory;
mod moving;
mod pytorch;
mod quantized;
mod store;
mod tensors;
mod tied;
#[cfg(feature = "train")]
mod train;
#[cfg(all(target_os = "linux", feature = "train"))]
mod train_memory;
