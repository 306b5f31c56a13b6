//! Checkpoints in buckets, on web servers and on the Hub, read by ranges: nothing is fetched but
//! headers and the bytes that are asked for.
//!
//! [`open`] takes an address and gives a [`Checkpoint`], which works like one on the disk: the
//! loaders of all adapters, slices, the parts of ranks, digests, rewrites into local files.
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
//! An address names a file of tensors, an index (`*.json`), or a directory, which opens like one on
//! the disk. In a store that cannot list, a directory opens if it has one of the two standard
//! names, `model.safetensors` or `model.safetensors.index.json`. A server may refuse missing files
//! with the status 403. That is an error only if nothing else is found. In a name, a `?` is written
//! `%3F` and a `#` is `%23`.
//!
//! # Requests
//!
//! Opening a file is one request for its first 512 KiB, and one more if the header is longer. On
//! the Hub one more asks for the file's address. Then each read is planned:
//!
//! - Ranges with at most 4 KiB between them are one request, and so are others if the joint request
//!   fetches at most twice the wanted bytes.
//! - No request has more than 16 MiB. A larger range is several requests at once.
//! - At most 32 requests of a checkpoint are under way, for any number of threads.
//! - At most 32 MiB that arrived wait to be copied into place. Tensors that are converted while
//!   they are read need 8 MiB more for each request.
//! - A load that is cancelled begins no further request, and ends when running requests have
//!   arrived.
//!
//! Requests that fail for a passing reason are repeated with growing pauses; a body that breaks off
//! or stalls is continued. A request has no total time limit: it fails if the server is silent for
//! 60 seconds or, while bytes are sent, if for twice that time the connection takes none of them. A
//! server that cannot be reached at all is given up after 10 seconds. Both times are options
//! ([`RemoteOptions::option`]). Every answer must have the requested range, of the same version of
//! the object: with the same ETag or, without one, the same length and time of change. A file that
//! changed since it was opened is an error.
//!
//! # The Hub's cache
//!
//! A file of the Hub that the [cache](crate::cache) has at the same commit is read from there. For
//! a branch one request asks for its commit; for a commit there is none. With `HF_HUB_OFFLINE` only
//! the cache is read, at the branch's commit when it was last downloaded. Nothing is written to the
//! cache. Buckets are not in it.
//!
//! # Credentials
//!
//! They come from the environment, as the vendors' tools name them, or from [`RemoteOptions`]. No
//! message shows them, and no other host gets them: requests to buckets follow no redirect, and
//! requests to web servers and to the Hub lose them when the host changes. Only `https` is used
//! unless the address begins with `http`, or an option allows it.
//!
//! # Proxies
//!
//! They come from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, as in downloads, and as
//! Python's `huggingface_hub` reads them; also `socks5://`. A proxy that cannot be used is an error
//! before anything is sent. The options `proxy_url` and `proxy_excludes` override the environment.
//!
//! # Threads
//!
//! All calls block. They work in any thread, also in one of an asynchronous runtime, because
//! everything asynchronous happens in a runtime of this crate. There call them with tokio's
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

/// Opens a checkpoint by its address: one file, an index, or a directory. Headers are fetched and
/// checked now, tensors when they are asked for. See [the module](self).
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
/// Malformed files are errors of the core. Failures of the store or the network are
/// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io), of the kind
/// [`NotFound`](std::io::ErrorKind::NotFound) if there is no such file, and
/// [`PermissionDenied`](std::io::ErrorKind::PermissionDenied) if the credentials do not suffice.
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
