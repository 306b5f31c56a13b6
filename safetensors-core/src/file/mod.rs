//! One file: opened, loaded in parallel, and saved so that it is whole or not there.
//!
//! Reading goes through `io::ReadAt`, bytes at a position, whether they are in a file, in memory or
//! on a network. `load` plans which bytes to read at once, and turns them into tensors. `save` lays
//! out a file, writes it under a hidden name, and renames it. `hash` has digests of tensors, and
//! what a change to a file does to the digests that others have of it.
//!
//! It does not know that a checkpoint may have several files.
//!
//! Begin with `io/read_at.rs` and `load/plan.rs` to read, with `save/atomic.rs` to write.
//!
//! | module | is about |
//! |---|---|
//! | `io` | files: read, copied, locked, removed; hidden names; a file whose header is parsed |
//! | `load` | tensors and parts of tensors, lazily and in parallel |
//! | `hash` | digests as values; records of a file |
//! | `save` | a file, written at once, as a stream, or growing; a directory that appears whole |

pub mod io;

#[cfg(feature = "std")]
pub mod load;

pub(crate) mod hash;

pub mod save;
