//! Addresses, read and written by `safetensors_hub`.

use safetensors_core::{SaveOptions, ShardOptions};
use safetensors_hub::remote::{self, RemoteOptions};

use super::printable;
use crate::input::{Checkpoint, Rewrite};
use crate::report::wrong_usage;

/// Whether a text begins like an address of a known kind.
pub(super) fn is_known(text: &str) -> bool {
    remote::is_address(text)
}

/// Opens the checkpoint at an address. Headers are fetched now, tensors when they are read.
pub(crate) fn open(address: &str) -> anyhow::Result<Checkpoint> {
    Ok(remote::open(address)?.into_boxed())
}

/// Refuses an address that nothing can be saved to, before anything is read.
pub(crate) fn check_writable(address: &str) -> anyhow::Result<()> {
    match address.split_once("://") {
        Some(("hf" | "http" | "https", _)) => Err(wrong_usage(format!(
            "{}: nothing is saved to the Hub or to web servers; OUT is a path, or a bucket such as \
             s3://bucket/model",
            printable(address)
        ))),
        _ => Ok(()),
    }
}

/// Saves everything to one file.
pub(crate) fn save(
    address: &str,
    rewrite: &Rewrite<'_>,
    options: &SaveOptions,
) -> anyhow::Result<()> {
    Ok(remote::save_rewrite(address, rewrite, options, &RemoteOptions::new())?)
}

/// Saves everything to a directory, as one file or several.
pub(crate) fn save_sharded(
    address: &str,
    rewrite: &Rewrite<'_>,
    options: &ShardOptions,
) -> anyhow::Result<()> {
    remote::save_rewrite_sharded(address, rewrite, options, &RemoteOptions::new())?;
    Ok(())
}
