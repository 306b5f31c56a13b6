//! Checkpoints that are not on this machine yet: downloads from the Hugging Face Hub, and reading
//! from object stores.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking"))]

mod address;
mod environment;
mod error;
mod etag;
mod repo;
mod stop;
mod text;
mod token;

pub mod cache;
#[cfg(feature = "download")]
pub mod client;
#[cfg(feature = "download")]
mod download;
#[cfg(feature = "remote")]
pub mod remote;

pub use address::HubAddress;
#[cfg(feature = "download")]
pub use download::{DownloadOptions, DownloadProgress, Snapshot, download};
pub use error::{Error, ErrorKind, Result};
pub use repo::{RepoId, Revision};
