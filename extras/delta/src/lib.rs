//! Deltas of checkpoints: the changes from one version of a model to the next, in the format that
//! slime, miles and ModelExpress share. A checkpoint is published once, and each later version as
//! the few per cent that differ.
//!
//! | to | use |
//! |---|---|
//! | make a delta of two checkpoints, or of a checkpoint and tensors in memory | [`make`] |
//! | look at a delta, and check that it is not damaged | [`Delta`] |
//! | apply one delta or several, verify them with their base, make one of several | [`Chain`] |
//! | keep a checkpoint at the newest version that a trainer publishes | [`Follower`] |
//! | keep files of a training as deltas that no deletion of others breaks | [`make_linked`], [`open_linked`] |
//!
//! A delta is a directory with an index, `model.safetensors.index.json`, and files of compressed
//! differences, one for each tensor that changed. It looks like a checkpoint, so everything that
//! opens one refuses it with
//! [`ErrorKind::IsDelta`](safetensors_core::ErrorKind::IsDelta).
//!
//! ```
//! use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
//! use safetensors_delta::{Chain, Options, make};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let old = [1.0_f32, 2.0, 3.0];
//! save(&path, [("w", TensorView::from_slice(&[3], &old)?)], &SaveOptions::new())?;
//! let base = Checkpoint::open(&path)?;
//!
//! // A training step changes one weight. What differs is published.
//! let new = [1.0_f32, 2.5, 3.0];
//! let tensors = [("w", TensorView::from_slice(&[3], &new)?)];
//! let delta = make(&base, tensors, dir.path().join("weight_v000001"), &Options::new())?;
//!
//! // A server that has the base makes the new version of both.
//! let served = dir.path().join("served");
//! Chain::new([delta])?.apply(&base, &served, &Options::new())?;
//! assert_eq!(Checkpoint::open(&served)?.tensor("w")?.read()?.as_slice::<f32>()?, new);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is checked
//!
//! A delta of [`make`] names the digest of all tensors of its base and of its result. Deltas of
//! other programs have checksums of the changed tensors only ([`Delta::base_digest`] returns
//! `None`), so another base is not found if the difference is in an unchanged tensor. Neither is a
//! signature: an attacker who changes a delta can change these, too.
//!
//! Files are not trusted. Names, sizes, positions and frames of zstd are checked, each frame gives
//! no byte more than its tensor has, and its window is limited to 8 MiB.
//!
//! # What only this crate reads
//!
//! The shared format has neither dtypes nor shapes. Where tensors are added, removed, reshaped or of
//! another dtype, or the [metadata](Options::metadata) differs, [`make`] writes an encoding that
//! other programs refuse: `xor-or-whole` or `overwrite-or-whole`. [`Delta::changes`] and
//! [`Delta::metadata`] return these changes. [`Options::for_slime`] and
//! [`Options::for_modelexpress`] make them an error.
//!
//! The files next to the tensors, such as `config.json`, come from the base.
//!
//! # Memory
//!
//! At most 64 differences are decompressed at a time, by all threads together. Each takes the
//! window of its frame, mostly 512 KiB and at most 8 MiB, or two where bytes are overwritten. A
//! tensor that more deltas of a chain change goes through files without a name after each 64, which
//! take its size on the disk: next to the files that are written, or in the system's directory for
//! temporary files if none are. [`Chain::squash`] makes one delta of many.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod apply;
mod blocks;
mod chain;
mod compare;
mod delta;
mod destination;
mod error;
mod extra;
mod follow;
mod format;
mod frame;
mod linked;
mod make;
mod options;
mod passes;
mod patch;
mod patched;
mod plan;
mod published;
mod spool;
mod state;
mod sums;

pub use chain::Chain;
pub use delta::Delta;
pub use error::{Error, ErrorKind, Result};
pub use extra::Change;
pub use follow::{Follower, Update};
pub use format::{ChecksumFormat, Encoding};
pub use linked::{make_linked, open_linked};
pub use make::make;
pub use options::Options;
pub use sums::digest;

/// The README with its example, which is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
