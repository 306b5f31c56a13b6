//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "burn")]
mod burn;
#[cfg(feature = "burn")]
mod burnpack;
#[cfg(feature = "gguf")]
mod gguf;
mod hostile;
mod manifest;
#[cfg(target_os = "linux")]
mod memory;
mod numpy;
mod round_trip;
mod support;
mod tensor_file;
#[cfg(all(target_os = "linux", feature = "gguf", feature = "pytorch"))]
mod tensor_file_memory;
