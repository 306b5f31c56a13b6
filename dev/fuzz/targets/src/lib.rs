//! The fuzz targets, as plain functions that panic on a finding.
//!
//! The engine (`dev/fuzz/fuzz_targets`, nightly) calls these functions with inputs that it makes.
//! `tests/replay.rs` calls them on any toolchain with the seeds in `dev/fuzz/seeds` and with the
//! inputs of past findings in `dev/fuzz/findings`.
//!
//! | target | must hold |
//! |---|---|
//! | [`header`] | we accept only files that the reference accepts, with equal results; refusals that only we have are documented |
//! | [`index`] | an index leads to the tensors that it names, below its directory, or is refused |
//! | [`delta`] | a compressed difference changes a tensor as a loop does, or is refused |
//! | [`edit`] | an interrupted edit leaves the old file or the new one, with any files next to it |
//! | [`slice`](mod@slice) | a slice has the elements that a loop over all positions finds |
//! | [`serialize`] | a saved file is read, by the reference too; equal tensors give equal bytes |
//! | [`signature`] | keys, certificates and signed lists of any kind are read or refused; no name leads elsewhere |
//! | [`npy`] | arrays of every layout are read element for element, archives as they were written |
//! | [`quantized`] | quantised weights are refused, or read in parts as they are whole |
//! | [`foreign`] | files of every format that share, repeat and nest are read, or refused in few words |
//! | [`tensor_file`] | files of PyTorch, GGUF, NumPy and trainers give equal parts and wholes, or are refused |
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

/// A target: its name, which its folders of seeds and findings have, and its function.
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
