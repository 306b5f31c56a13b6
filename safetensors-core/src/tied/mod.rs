//! Tied weights: tensors that share storage are saved once, and found again under all of their
//! names.
//!
//! [`SaveOptions::tied`](crate::SaveOptions::tied) asks for it, [`Tied`] says how, [`resolve`]
//! finds what to keep. The rules are those of `save_model` and `load_model` in the Python package
//! `safetensors.torch`.

mod options;
mod record;
mod resolve;
mod storage;

pub use options::{Tied, Views};
pub(crate) use record::apply;
#[cfg(feature = "std")]
pub(crate) use record::{drop_copies, is_reserved, record};
pub use resolve::{Resolved, resolve};
pub use storage::Storage;
