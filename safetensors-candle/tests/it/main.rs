//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod devices;
#[cfg(feature = "gguf")]
mod gguf;
mod load;
mod lora;
mod migration;
mod quantised;
mod quantize;
mod save;
mod tensor_parallel;
mod train;
#[cfg(target_os = "linux")]
mod train_memory;
mod var_builder;
#[cfg(target_os = "linux")]
mod var_builder_memory;
