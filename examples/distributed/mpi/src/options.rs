//! [`Options`]: the arguments of the command line.

use std::path::PathBuf;

use clap::Parser;

/// Reads a small Llama in parts, one for each rank, and compares its logits with the whole model's.
///
/// Begin with `mpi-llama --write DIR`, then `mpirun -n RANKS mpi-llama DIR`.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The directory of the checkpoint, which is read or written
    pub(crate) directory: PathBuf,
    /// Write a checkpoint, and do nothing else
    #[arg(long)]
    pub(crate) write: bool,
    /// The seed of the weights
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The most bytes of a message
    // MPI counts the elements of a message by `int`.
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) message_len: u32,
    /// The rank with files that fail while replicated tensors are read: an error on all ranks
    #[arg(long)]
    pub(crate) fail_reading: Option<usize>,
    /// The rank that fails while the others wait for it: MPI ends all ranks
    #[arg(long)]
    pub(crate) fail_computing: Option<usize>,
}
