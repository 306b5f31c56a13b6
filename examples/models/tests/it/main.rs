//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod burn_llama;
mod experts;
mod quantised_llama;
mod quantized_builder;
mod rwkv;
