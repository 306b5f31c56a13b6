//! Deltas of checkpoints: the changes between versions of a model.
//!
//! slime, miles and ModelExpress share the format. Each version after the first takes the few per
//! cent that differ.
//!
//! | to | use |
//! |---|---|
//! | make a delta of two checkpoints, or of a checkpoint and tensors in memory | [`make`] |
//! | look at a delta, and check that it is not damaged | [`Delta`] |
//! | apply deltas, verify them with their base, make one of several | [`Chain`] |
//! | keep a checkpoint at the newest version that a trainer publishes | [`Follower`] |
//! | keep files of a training as deltas that no deletion of others breaks | [`make_linked`], [`open_linked`] |
//!
//! A delta is a directory with an index, `model.safetensors.index.json`, and a compressed
//! difference for each changed tensor. Everything that opens a checkpoint refuses it with
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
//! A delta of [`make`] has digests of its base and its result. Deltas of other programs only have
//! checksums of changed tensors ([`Delta::base_digest`] is `None`), so a wrong base is not found if
//! an unchanged tensor differs. None of them is a signature.
//!
//! Files are not trusted: names, sizes, positions and zstd frames are checked, a frame gives no
//! more bytes than its tensor has, and its window has at most 8 MiB.
//!
//! # Additions to the format
//!
//! The shared format has no dtypes or shapes. If tensors are added, removed, reshaped or of another
//! dtype, or if [metadata](Options::metadata) differs, [`make`] writes the encoding `xor-or-whole`
//! or `overwrite-or-whole`, which other programs refuse. [`Delta::changes`] and [`Delta::metadata`]
//! return these changes; [`Options::for_slime`] and [`Options::for_modelexpress`] make them an
//! error.
//!
//! Files next to the tensors, such as `config.json`, come from the base.
//!
//! # Memory
//!
//! At most 64 differences are decompressed at a time, by all threads together. Each takes the
//! window of its frame, mostly 512 KiB and at most 8 MiB, or two if bytes are overwritten. A tensor
//! that more than 64 deltas change goes through unnamed files of its size: next to the written
//! files, or in the system's temporary directory. [`Chain::squash`] makes one delta of many.
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
