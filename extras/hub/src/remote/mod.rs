//! Checkpoints in buckets, on web servers and on the Hub, read by ranges.
//!
//! [`open`] takes an address and returns a [`Checkpoint`] that works like one on disk. Only headers
//! and requested bytes are fetched.
//!
//! ```
//! use safetensors_core::slice::RankPart;
//! use safetensors_core::{ShardOptions, TensorView};
//! use safetensors_hub::remote::{self, RemoteOptions};
//!
//! let address = "memory:///models/gpt"; // or s3://bucket/models/gpt
//! let values: Vec<f32> = (0..6).map(|value| value as f32).collect();
//! let weight = TensorView::from_slice(&[2, 3], &values)?;
//! RemoteOptions::new().save_sharded(address, [("weight", weight)], &ShardOptions::new())?;
//!
//! let checkpoint = remote::open(address)?;
//! let weight = checkpoint.tensor("weight")?;
//! assert_eq!(weight.read()?.as_slice::<f32>()?, values);
//! // Rank 1 of 2 fetches its half only.
//! let part = weight.slice(RankPart::new(0, 1, 2))?.read()?;
//! assert_eq!(part.as_slice::<f32>()?, [3.0, 4.0, 5.0]);
//! # Ok::<(), safetensors_core::Error>(())
//! ```
//!
//! | address | place | lists | saves |
//! |---|---|---|---|
//! | `s3://bucket/path` | Amazon S3 and servers with its protocol; also `s3a` | yes | yes |
//! | `gs://bucket/path` | Google Cloud Storage | yes | yes |
//! | `az://container/path` | Azure Blob Storage; also `azure`, `adl`, `abfs`, `abfss` | yes | yes |
//! | `https://host/path`, `http` | a web server that sends ranges; a query may sign it | no | no |
//! | `hf://owner/name[@revision][/path]` | a repository on the Hugging Face Hub; also `hf://datasets/...`, `models`, `spaces`, `kernels`, and `hf://buckets/owner/name[/path]` | yes | no |
//! | `file:///path` | the local disk, as without an address ([`local_path`]) | yes | yes |
//! | `memory:///path` | the memory of this process, for tests | yes | yes |
//!
//! An address names a file of tensors, an index (`*.json`), or a directory, which in a store
//! without lists needs a `model.safetensors` or `model.safetensors.index.json`. The status 403 for
//! a missing file is an error only if nothing else is found. In names, `?` is `%3F` and `#` is
//! `%23`.
//!
//! # Requests
//!
//! Opening a file is one request for its first 512 KiB, one more for a longer header, and on the
//! Hub one more for the file's address. Then each read is planned:
//!
//! - Ranges with at most 4 KiB between them are one request, as are others if that fetches at
//!   most twice the wanted bytes. No request has more than 16 MiB.
//! - At most 32 requests of a checkpoint run at once, for any number of threads, and 32 MiB that
//!   arrived wait to be copied. Tensors converted while read need 8 MiB more for each request.
//! - A cancelled load begins no further request, and ends when running ones have arrived.
//!
//! Requests with a passing failure are repeated with growing pauses, and broken bodies continued.
//! There is no total time limit. A server fails if it is silent for 60 seconds, or while bytes are
//! sent twice that, or if it is not reached within 10 seconds ([options](RemoteOptions::option)).
//! An object that changed since it was opened is an error, by its ETag or its length and time.
//!
//! # The Hub's cache
//!
//! A file of the Hub is read from the [cache](crate::cache), if it has the same commit. A branch
//! takes one request for its commit, a commit none. With `HF_HUB_OFFLINE` only the cache is read,
//! at the branch's commit of the last download. Nothing is written to it, and buckets are not in
//! it.
//!
//! # Credentials
//!
//! They come from the environment, named as in the vendors' tools, or from [`RemoteOptions`]. No
//! message shows them and no other host gets them: requests to buckets follow no redirect, others
//! lose them when the host changes. Only `https` is used, unless the address or an option asks for
//! `http`.
//!
//! # Proxies
//!
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` count, as in Python's `huggingface_hub`;
//! also `socks5://`. An unusable proxy is an error before anything is sent. The options `proxy_url`
//! and `proxy_excludes` override them.
//!
//! # Threads
//!
//! All calls block, and work in any thread. In one of an asynchronous runtime call them by tokio's
//! `spawn_blocking` or the like, so that other tasks continue.

mod bounded;
mod client;
mod error;
mod fetch;
mod file;
mod files;
mod hub;
mod hub_reads;
mod kind;
mod local;
mod object;
mod options;
mod place;
mod plan;
mod reaching;
mod runtime;
mod save;
mod silence;
mod store;

use safetensors_core::checkpoint::Assembled;
use safetensors_core::{Checkpoint, Limits, Result};

pub use file::RemoteFile;
pub use kind::AddressKind;
pub use local::local_path;
pub use options::RemoteOptions;
pub use save::abort_uploads;
pub use store::RemoteStore;

/// Opens a checkpoint by its address. Headers are fetched and checked now, tensors when asked for.
/// See [the module](self).
///
/// ```no_run
/// use safetensors_core::LoadOptions;
/// use safetensors_hub::remote;
///
/// let checkpoint = remote::open("hf://openai-community/gpt2")?;
/// for tensor in checkpoint.tensors() {
///     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
/// }
/// let some = checkpoint.read_named(["wte.weight", "wpe.weight"], &LoadOptions::new())?;
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// Malformed files are errors of the core. Failures of the store or network are
/// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io), with the kind
/// [`NotFound`](std::io::ErrorKind::NotFound) for a missing file, and
/// [`PermissionDenied`](std::io::ErrorKind::PermissionDenied) for insufficient credentials.
pub fn open(address: &str) -> Result<Checkpoint<Assembled<RemoteFile>>> {
    RemoteOptions::new().open(address)
}

impl RemoteOptions {
    /// Opens a checkpoint like [`open`], with these options.
    ///
    /// ```
    /// use safetensors_hub::remote::{self, RemoteOptions};
    ///
    /// # let view = safetensors_core::TensorView::from_slice(&[1], &[1_u8])?;
    /// # let address = "memory:///o/m.safetensors";
    /// # RemoteOptions::new().save(address, [("w", view)], &Default::default())?;
    /// let options = RemoteOptions::new().retries(2).option("connect_timeout", "3s");
    /// let checkpoint = options.open("memory:///o/m.safetensors")?;
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn open(&self, address: &str) -> Result<Checkpoint<Assembled<RemoteFile>>> {
        let store = RemoteStore::new(address, self)?;
        let path = store.path();
        Checkpoint::open_in(store, path, &Limits::default())
    }
}
