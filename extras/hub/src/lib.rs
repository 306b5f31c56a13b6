//! Downloads checkpoints from the Hugging Face Hub, and reads them from object stores.
//!
//! | to | use | feature |
//! |---|---|---|
//! | download a checkpoint, and open it as a path | [`download()`] | `download` |
//! | read files of the Hub by range | [`client`] | `download` |
//! | open checkpoints in buckets, on web servers and on the Hub without a download | `remote` | `remote` |
//! | list the content of the cache | [`cache`] | |
//! | check whether the cache is intact | [`CachedRepo::verify`](cache::CachedRepo::verify) | `download` |
//! | name a repository, a revision, a file on the Hub | [`RepoId`], [`Revision`], [`HubAddress`] | |
//!
//! ```no_run
//! use safetensors_core::Checkpoint;
//! use safetensors_hub::{DownloadOptions, download};
//!
//! let model = download("openai-community/gpt2", &DownloadOptions::new())?;
//! for tensor in Checkpoint::open(&model)?.tensors() {
//!     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! A server is not trusted: unsafe file names and indexes are refused, and a file gets its name in
//! the cache only with the Hub's size and digest. Failed requests are repeated, and then an
//! [`Error`] that names the place. The token goes only to the Hub's own address, and no message
//! shows it.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "download"), allow(rustdoc::broken_intra_doc_links))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking"))]

mod address;
mod environment;
mod error;
#[cfg(feature = "download")]
mod etag;
#[cfg(feature = "download")]
mod parallel;
#[cfg(feature = "download")]
mod proxy;
mod repo;
mod text;
#[cfg(feature = "download")]
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
pub use download::{DownloadOptions, DownloadProgress, PreviewedFile, Snapshot, download, preview};
pub use error::{Error, ErrorKind, Result};
pub use repo::{RepoId, Revision};

#[cfg(all(doctest, feature = "remote"))]
#[doc = include_str!("../README.md")]
mod readme {}
