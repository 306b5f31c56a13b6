//! Saving: sources of tensors, a layout decided beforehand, and a writer that replaces the file whole or not at all.

#[cfg(feature = "std")]
mod atomic;
mod layout;
mod memory;
mod options;
mod source;
#[cfg(feature = "std")]
mod writer;

pub use memory::serialize;
pub use options::{Order, SaveOptions};
pub use source::{Sink, TensorSource, write_native};
#[cfg(feature = "std")]
pub use writer::save;
