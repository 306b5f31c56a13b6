//! Addresses, read and written by `safetensors_hub`.

use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::{Error, ErrorKind, SaveOptions, ShardOptions};
pub(crate) use safetensors_hub::remote::abort_uploads;
use safetensors_hub::remote::{self, AddressKind, RemoteOptions, RemoteStore};

use super::printable;
use crate::input::source::{Checkpoint, Rewrite};
use crate::terminal::report::wrong_usage;

/// The store of an address.
pub(super) type Files = RemoteStore;

/// Returns `true` if a text begins like an address of a known kind.
pub(super) fn is_known(text: &str) -> bool {
    AddressKind::of(text).is_some()
}

/// Returns the path that an address of the disk means. Every other address, and every path, stays
/// as it is.
pub(super) fn on_disk(path: PathBuf) -> safetensors_core::Result<PathBuf> {
    let meant = path.to_str().map(remote::local_path).transpose()?.flatten();
    Ok(meant.unwrap_or(path))
}

/// Opens the checkpoint at an address. Headers are fetched now, tensors when they are read.
pub(super) fn open(
    address: &str,
    otherwise: impl FnOnce(Files, &Path, Error) -> anyhow::Result<Checkpoint>,
) -> anyhow::Result<Checkpoint> {
    match remote::open(address) {
        Ok(checkpoint) => Ok(checkpoint.into_boxed()),
        Err(error) if is_of_access(&error) => Err(advise(error, address)),
        // It may be a file or a directory of another format.
        Err(error) => {
            let store = RemoteStore::new(address, &RemoteOptions::new())?;
            let path = store.path();
            otherwise(store, &path, error)
        }
    }
}

/// Returns the store of an address with directories to list, and the path in it.
pub(super) fn store(address: &str) -> anyhow::Result<(Files, PathBuf)> {
    if AddressKind::of(address) == Some(AddressKind::Web) {
        return Err(wrong_usage(format!(
            "{}: a web server does not list what is in a directory; expected a path, or a bucket \
             such as s3://bucket/model",
            printable(address)
        )));
    }
    let store = RemoteStore::new(address, &RemoteOptions::new())?;
    let path = store.path();
    Ok((store, path))
}

/// Returns `true` if an error is not about the format: nothing was read, or there are several
/// files.
fn is_of_access(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NoCheckpoint { found, .. } => !found.is_empty(),
        ErrorKind::Io(_) => true,
        _ => error.other::<safetensors_hub::ErrorKind>().is_some(),
    }
}

/// Returns the files of whole tensors at an address, each as a separate checkpoint.
pub(super) fn parts(address: &str) -> anyhow::Result<Vec<Checkpoint>> {
    let opened = remote::open(address).map_err(|error| advise(error, address))?;
    let parts = opened.into_parts()?;
    Ok(parts.into_iter().map(safetensors_core::Checkpoint::into_boxed).collect())
}

/// Returns the checkpoint at an address, if there is one.
pub(crate) fn find(address: &str) -> anyhow::Result<Option<Checkpoint>> {
    match remote::open(address) {
        Ok(checkpoint) => Ok(Some(checkpoint.into_boxed())),
        Err(error) => match error.kind() {
            ErrorKind::NoCheckpoint { .. } => Ok(None),
            ErrorKind::Io(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Err(advise(error, address)),
        },
    }
}

/// Adds to an error the address, unless it names it, and a remedy.
pub(super) fn advise(error: Error, address: &str) -> anyhow::Error {
    let (shown, message) = (printable(address), error.to_string());
    let remedy = remedy(&error, address);
    if remedy.is_none() && message.contains(&shown) {
        return error.into();
    }
    let place = if message.contains(&shown) { String::new() } else { format!("{shown}: ") };
    let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
    anyhow::anyhow!("{place}{message}{remedy}")
}

/// Returns advice about a store that refuses, lacks or does not answer a request. Other errors have
/// their own.
fn remedy(error: &Error, address: &str) -> Option<&'static str> {
    if let Some(safetensors_hub::ErrorKind::Network { .. }) = error.other() {
        return Some("check the network; HF_ENDPOINT names another Hub, such as a mirror");
    }
    let ErrorKind::Io(error) = error.kind() else { return None };
    match (error.kind(), AddressKind::of(address)?) {
        (_, AddressKind::Hub) => None,
        (io::ErrorKind::NotFound, _) => {
            Some("check the address: expected that of a file, an index or a directory")
        }
        (io::ErrorKind::PermissionDenied | io::ErrorKind::Other, kind) => Some(match kind {
            AddressKind::S3 => {
                "check the address and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION; \
                 AWS_SKIP_SIGNATURE=true reads a public bucket"
            }
            AddressKind::Gcs => {
                "check the address and GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true \
                 reads a public bucket"
            }
            AddressKind::Azure => {
                "check the address and AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY; \
                 AZURE_SKIP_SIGNATURE=true reads a public container"
            }
            _ => "check the address and the network",
        }),
        _ => None,
    }
}

/// Refuses an address that nothing can be saved to.
pub(super) fn check_writable(address: &str) -> anyhow::Result<()> {
    match AddressKind::of(address) {
        Some(AddressKind::Hub | AddressKind::Web) => Err(wrong_usage(format!(
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
    Ok(RemoteOptions::new().save_rewrite(address, rewrite, options)?)
}

/// Saves everything to a directory, as one file or several.
pub(crate) fn save_sharded(
    address: &str,
    rewrite: &Rewrite<'_>,
    options: &ShardOptions,
) -> anyhow::Result<()> {
    RemoteOptions::new().save_rewrite_sharded(address, rewrite, options)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a request, which would be repeated for some 10 seconds.
    #[test]
    fn a_hub_out_of_reach_is_named_with_a_remedy() {
        let (host, problem) = ("huggingface.co".into(), "Connection refused".into());
        let kind = safetensors_hub::ErrorKind::Network { host, problem };
        let error = advise(kind.into(), "hf://owner/name");
        assert_eq!(
            error.to_string(),
            "hf://owner/name: huggingface.co: Connection refused; check the network; HF_ENDPOINT \
             names another Hub, such as a mirror"
        );
        // Other errors have their own advice.
        let kind = safetensors_hub::ErrorKind::RepoNotFound { has_token: false };
        let error = advise(kind.into(), "hf://owner/name");
        assert!(error.to_string().ends_with("check the name, and set HF_TOKEN"), "{error}");
    }
}
