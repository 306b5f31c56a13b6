//! Tests checkpoints of training: variables, optimizer state, and both as one unit.

mod adamw;
mod background;
mod checkpoint;
#[cfg(feature = "delta")]
mod deltas;
mod failures;
mod interop;
mod kills;
mod options;
mod state;
mod support;
mod ties;
mod var_map;
