//! A Llama-like model on the ranks of MPI, each with its part of the weights.
//!
//! ```text
//! mpi-llama --write DIR             writes a checkpoint of several files, alone
//! mpirun -n 4 mpi-llama DIR         loads it in parts, runs the model, and checks everything
//! ```
//!
//! Every rank reads its parts as `safetensors_core::ranks` plans them. Replicated tensors also come
//! over MPI, in two ways. The program counts the bytes that are read, and compares the logits with
//! a single process. Any difference is an error on all ranks.

mod checks;
mod counting;
mod failure;
mod group;
mod model;
mod options;
mod replicated;
mod report;
mod weights;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;
use mpi::Threading;
use mpi::traits::Communicator;

use crate::failure::Agreed;
use crate::group::Group;
use crate::options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.write {
        return match weights::write(&options.directory, options.seed) {
            Ok(saved) => {
                println!("{}: {} files", options.directory.display(), saved.files.len());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    // Only this thread calls MPI. Threads that read files and multiply matrices do not.
    let Some((universe, Threading::Funneled | Threading::Serialized | Threading::Multiple)) =
        mpi::initialize_with_threading(Threading::Funneled)
    else {
        eprintln!("error: this MPI library allows no threads other than the one that calls it");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let rank = world.rank();
    let group = Group::new(world, options.message_len as usize);
    match catch_unwind(AssertUnwindSafe(|| checks::run(&group, &options))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // All ranks know of it and end here. None ends before all have said so, because mpirun
        // kills the others once the first has ended with an error.
        Ok(Err(error)) if error.is::<Agreed>() => {
            complain(format!("rank {rank}: {error:#}\n"));
            group.barrier();
            ExitCode::FAILURE
        }
        // The others may be waiting for this rank, so all are ended.
        Ok(Err(error)) => {
            complain(format!("rank {rank} ends all ranks: {error:#}\n"));
            group.abort()
        }
        // The panic has been printed.
        Err(_) => group.abort(),
    }
}

/// Prints an error in one piece. Otherwise `mpirun` would mix it with other ranks' errors.
fn complain(message: String) {
    // If the message cannot be printed, the exit code still says it.
    let _ = std::io::stderr().write_all(message.as_bytes());
}
