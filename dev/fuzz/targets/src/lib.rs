//! What each fuzz target does with an input, as a plain function that panics on a finding.
//!
//! The engine (`dev/fuzz/fuzz_targets`, nightly) calls these functions with inputs of its own making.
//! `tests/replay.rs` calls them on any toolchain with the seeds in `dev/fuzz/seeds` and with the inputs
//! of past findings in `dev/fuzz/findings`.
//!
//! | target | what must hold |
//! |---|---|
//! | [`header`] | what we accept, the reference accepts alike; what only we refuse is documented |
//! | [`index`] | an index leads to the tensors that it names, below its directory, or is refused |
//! | [`delta`] | a compressed difference makes of a tensor what a loop makes of it, or is refused |
//! | [`edit`] | an interrupted edit leaves the old file or the new one, whatever lies beside it |
//! | [`slice`](mod@slice) | a slice has the elements that a loop over all positions finds |
//! | [`serialize`] | what was saved is read, by the reference too; equal tensors give equal bytes |
//! | [`signature`] | keys, certificates and signed lists of any kind are read or refused; no name leads elsewhere |
//! | [`npy`] | arrays of every layout are read element for element, archives as they were written |
//! | [`quantized`] | quantised weights are refused, or read in parts as they are whole |
//! | [`foreign`] | files of every format that share, repeat and nest are read, or refused in few words |
//! | [`tensor_file`] | any file of PyTorch, GGUF or NumPy, and any directory of a trainer, is read in
//! parts as it is whole, or refused |
//!
//! Nothing may panic, overflow, hang or take memory out of proportion. Inputs are read by
//! [`input::Input`] alone, so that a finding means the same after any update of a dependency.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a finding is a panic")]

pub mod delta;
pub mod edit;
pub mod foreign;
pub mod header;
pub mod index;
pub mod input;
pub mod npy;
pub mod quantized;
pub mod scratch;
pub mod serialize;
pub mod signature;
pub mod slice;
pub mod tensor_file;
pub mod tensors;

/// A target: its name, which is that of its folders of seeds and findings, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("delta", delta::run),
    ("edit", edit::run),
    ("foreign", foreign::run),
    ("header", header::run),
    ("index", index::run),
    ("npy", npy::run),
    ("quantized", quantized::run),
    ("serialize", serialize::run),
    ("signature", signature::run),
    ("slice", slice::run),
    ("tensor_file", tensor_file::run),
];
