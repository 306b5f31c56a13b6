//! Tied weights: tensors that share storage are saved once, and found under each of their names.
//!
//! [`SaveOptions::tied`](crate::SaveOptions::tied) turns this on. The rules match
//! `save_model` and `load_model` in `safetensors.torch`.

mod options;
mod record;
mod resolve;
#[cfg(test)]
mod tests;

pub use options::{Tied, Views};
pub(crate) use record::{drop_copies, record};
pub(crate) use resolve::{Resolved, nothing_is_shared, resolve};

pub use crate::format::tensor::Storage;
