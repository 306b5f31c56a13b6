//! The common part of this member's examples. They are examples of safetensors-bridge that need
//! heavy dependencies, or that take longer than its quickstart.

pub mod kills;
pub mod llama;
pub mod sentences;
