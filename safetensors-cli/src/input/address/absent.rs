//! Addresses in a command that was built without them: each is an error with a remedy.

use std::path::PathBuf;

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::{Error, SaveOptions, ShardOptions};

use super::printable;
use crate::input::source::Rewrite;

pub(super) type Files = LocalStore;

/// Returns `true` for every text with a scheme.
pub(super) fn is_known(_: &str) -> bool {
    true
}

pub(super) fn on_disk(path: PathBuf) -> anyhow::Result<PathBuf> {
    Ok(path)
}

pub(crate) fn missing() -> anyhow::Error {
    anyhow::anyhow!(
        "this `safetensors` was built without addresses and downloads; \
         `cargo install safetensors-bridge-cli --features remote` builds it with them"
    )
}

pub(super) fn files(address: &str) -> anyhow::Result<(Files, PathBuf)> {
    Err(without(address))
}

pub(crate) fn advise(error: Error, _: &str) -> anyhow::Error {
    error.into()
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

pub(crate) fn abort_uploads() {}

fn without(address: &str) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", printable(address), missing())
}
