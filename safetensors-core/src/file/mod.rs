//! One file: opened, loaded in parallel, and saved so that it is complete or absent.
//!
//! Begin with `io/read_at.rs` and `load/plan.rs` to read, with `save/atomic.rs` to write.
//! Checkpoints with several files are in `checkpoint`.
//!
//! | module | is about |
//! |---|---|
//! | `io` | files: read, copied, locked, removed; hidden names; a file with its parsed header |
//! | `load` | tensors and parts of tensors, lazily and in parallel |
//! | `hash` | digests as values; records of a file |
//! | `save` | a file, written at once, as a stream, or growing; a directory that appears complete |

pub mod io;

#[cfg(feature = "std")]
pub mod load;

pub(crate) mod hash;

pub mod save;
