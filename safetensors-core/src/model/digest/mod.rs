//! Digests: show whether the data of a file has changed since it was saved.
//!
//! | digest | of | kept in `__metadata__` under |
//! |---|---|---|
//! | XXH3-128 | each tensor's bytes | [`KEY`], one entry for all tensors: [`TensorDigests`] |
//! | SHA-256 | all bytes after the header | `modelspec.hash_sha256` of the [ModelSpec standard](https://github.com/Stability-AI/ModelSpec) |
//!
//! XXH3 is about as fast as reading memory, and shows which tensor has changed. Digests find
//! accidents, not attacks: anyone who changes the data can also change its digest.
//!
//! | to | use |
//! |---|---|
//! | compute digests | [`hash_tensors`], [`hash_files`], [`hash_source`] |
//! | record digests while saving | [`SaveOptions::digests`](crate::SaveOptions::digests) |
//! | record digests in a file | [`Edit::record_digests`](crate::edit::Edit::record_digests) |
//! | compare files with their records | [`verify`] |
//! | change data and keep metadata | [`remove_record`] |
//!
//! ```
//! use safetensors_core::digest::{self, DigestOptions};
//! use safetensors_core::{Checkpoint, ErrorKind, SaveOptions, TensorView, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
//! save(&path, [("weight", weight)], &SaveOptions::new().digests(true))?;
//!
//! let checkpoint = Checkpoint::open(&path)?;
//! let files = digest::verify(&checkpoint, &DigestOptions::new())?;
//! assert_eq!(files[0].checked, ["weight"]);
//!
//! // One bit flips.
//! let mut bytes = std::fs::read(&path)?;
//! *bytes.last_mut().unwrap() ^= 1;
//! std::fs::write(&path, bytes)?;
//! let error = digest::verify(&checkpoint, &DigestOptions::new()).unwrap_err();
//! assert!(matches!(error.kind(), ErrorKind::DigestMismatch { .. }));
//! assert_eq!(error.tensor(), Some("weight"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "sha256")]
mod files;
#[cfg(feature = "std")]
mod verify;

#[cfg(feature = "sha256")]
pub use files::{hash_files, hash_source};
#[cfg(feature = "std")]
pub use verify::{VerifiedFile, verify, verify_all};

pub use crate::file::hash::Sha256;
#[cfg(feature = "std")]
pub use crate::file::hash::{
    Digest, DigestOptions, Hasher, KEY, Note, TensorDigests, hash_tensors, remove_record,
};
