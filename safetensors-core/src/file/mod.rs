//! One file: opened, loaded in parallel, and saved so that it is complete or absent.
//!
//! Reading goes through `io::ReadAt`, bytes at a position, whether they are in a file, in memory or
//! on a network. `load` plans reads and turns bytes into tensors. `save` lays out a file, writes it
//! under a hidden name, and renames it. `hash` computes digests of tensors, and updates or drops
//! recorded digests when a file changes.
//!
//! Checkpoints with several files are in `checkpoint`.
//!
//! Begin with `io/read_at.rs` and `load/plan.rs` to read, with `save/atomic.rs` to write.
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
