//! What the examples of this member share. They are examples of safetensors-bridge that need heavy
//! dependencies, or that take longer than its quickstart.

pub mod kills;
pub mod llama;
pub mod sentences;
