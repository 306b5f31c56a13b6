//! Checkpoints in buckets, on web servers and on the Hub, read by ranges: nothing is downloaded but
//! the bytes that are asked for.

mod client;
mod error;
mod fetch;
mod file;
mod files;
mod hub;
mod object;
mod options;
mod place;
mod plan;
mod runtime;
mod save;
mod store;

use safetensors_core::{Checkpoint, Result};

pub use file::RemoteFile;
pub use options::RemoteOptions;
pub use save::{save, save_sharded, save_sharded_with, save_with};
pub use store::RemoteStore;

/// Opens.
pub fn open(address: &str) -> Result<Checkpoint<RemoteFile>> {
    open_with(address, &RemoteOptions::new())
}

/// Opens.
pub fn open_with(address: &str, options: &RemoteOptions) -> Result<Checkpoint<RemoteFile>> {
    let store = RemoteStore::new(address, options)?;
    let path = store.path();
    Checkpoint::open_in(store, path, &options.limits)
}
