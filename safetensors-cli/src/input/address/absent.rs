//! Addresses in a command that was built without them: every use is an error that explains how to
//! get one with them.

use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::{Error, SaveOptions, ShardOptions};

use super::printable;
use crate::input::source::{Checkpoint, Rewrite};

/// The store of an address. There is none.
pub(super) type Files = LocalStore;

/// Every text with a scheme counts as an address.
pub(super) fn is_known(_: &str) -> bool {
    true
}

/// Every address stays one.
pub(super) fn on_disk(path: PathBuf) -> anyhow::Result<PathBuf> {
    Ok(path)
}

/// Returns the error of a command that needs addresses or downloads.
pub(crate) fn missing() -> anyhow::Error {
    anyhow::anyhow!(
        "this `safetensors` was built without addresses and downloads; \
         `cargo install safetensors-bridge-cli --features remote` builds it with them"
    )
}

pub(super) fn open(
    address: &str,
    _: impl FnOnce(Files, &Path, Error) -> anyhow::Result<Checkpoint>,
) -> anyhow::Result<Checkpoint> {
    Err(without(address))
}

pub(super) fn store(address: &str) -> anyhow::Result<(Files, PathBuf)> {
    Err(without(address))
}

pub(super) fn advise(error: Error, _: &str) -> anyhow::Error {
    error.into()
}

pub(super) fn parts(address: &str) -> anyhow::Result<Vec<Checkpoint>> {
    Err(without(address))
}

pub(crate) fn find(address: &str) -> anyhow::Result<Option<Checkpoint>> {
    Err(without(address))
}

pub(super) fn check_writable(address: &str) -> anyhow::Result<()> {
    Err(without(address))
}

pub(crate) fn save(address: &str, _: &Rewrite<'_>, _: &SaveOptions) -> anyhow::Result<()> {
    Err(without(address))
}

pub(crate) fn save_sharded(address: &str, _: &Rewrite<'_>, _: &ShardOptions) -> anyhow::Result<()> {
    Err(without(address))
}

/// Nothing is ever sent.
pub(crate) fn abort_uploads() {}

fn without(address: &str) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", printable(address), missing())
}
