//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::duplicate_mod, reason = "two examples start the same server")]

// Examples that need no input have a test.
#[path = "../../examples/candle_experts.rs"]
mod candle_experts;
#[path = "../../examples/candle_gguf.rs"]
#[allow(dead_code, reason = "its test calls what `main` does without an argument")]
mod candle_gguf;
#[path = "../../examples/gguf_to_candle.rs"]
mod gguf_to_candle;
#[path = "../../examples/hub_to_candle.rs"]
#[allow(dead_code, reason = "its test calls what `main` does without an argument")]
mod hub_to_candle;

mod burn_llama;
mod experts;
mod quantised_llama;
mod quantized_builder;
mod rwkv;
