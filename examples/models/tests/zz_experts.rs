#![allow(clippy::panic, clippy::unwrap_used, missing_docs)]
#[path = "it/experts.rs"]
mod experts;
