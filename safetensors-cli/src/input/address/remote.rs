//! Addresses, read and written by `safetensors_hub`.

use std::io;
use std::path::PathBuf;

use safetensors_core::{Error, ErrorKind, SaveOptions, ShardOptions};
pub(crate) use safetensors_hub::remote::abort_uploads;
use safetensors_hub::remote::{self, AddressKind, RemoteOptions, RemoteStore};

use super::printable;
use crate::input::source::Rewrite;
use crate::terminal::report::wrong_usage;

pub(super) type Files = RemoteStore;

pub(super) fn is_known(text: &str) -> bool {
    AddressKind::detect(text).is_some()
}

/// Turns an address of the disk into its path.
pub(super) fn on_disk(path: PathBuf) -> safetensors_core::Result<PathBuf> {
    let meant = path.to_str().map(remote::local_path).transpose()?.flatten();
    Ok(meant.unwrap_or(path))
}

/// Returns the store, and the path in it.
pub(super) fn files(address: &str) -> anyhow::Result<(Files, PathBuf)> {
    let store = RemoteStore::new(address, &RemoteOptions::new());
    let store = store.map_err(|error| advise(error, address))?;
    let path = store.path();
    Ok((store, path))
}

/// Adds the address and a remedy.
pub(crate) fn advise(error: Error, address: &str) -> anyhow::Error {
    let (shown, message) = (printable(address), error.to_string());
    let remedy = remedy(&error, address);
    if remedy.is_none() && message.contains(&shown) {
        return error.into();
    }
    let place = if message.contains(&shown) { String::new() } else { format!("{shown}: ") };
    let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
    anyhow::anyhow!("{place}{message}{remedy}")
}

/// Advises about a store that refuses, lacks or does not answer a request. Other errors have
/// advice.
fn remedy(error: &Error, address: &str) -> Option<&'static str> {
    if let Some(safetensors_hub::ErrorKind::Network { .. }) = error.other() {
        return Some("check the network; HF_ENDPOINT names another Hub, such as a mirror");
    }
    let ErrorKind::Io(error) = error.kind() else { return None };
    match (error.kind(), AddressKind::detect(address)?) {
        (_, AddressKind::Hub) => None,
        (io::ErrorKind::NotFound, _) => {
            Some("check the address: expected a file, an index or a directory")
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

pub(super) fn check_writable(address: &str) -> anyhow::Result<()> {
    match AddressKind::detect(address) {
        Some(AddressKind::Hub | AddressKind::Web) => Err(wrong_usage(format!(
            "{}: nothing is saved to the Hub or to web servers; OUT is a path, or a bucket such as \
             s3://bucket/model",
            printable(address)
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn save(
    address: &str,
    rewrite: &Rewrite<'_>,
    options: &SaveOptions,
) -> anyhow::Result<()> {
    Ok(RemoteOptions::new().save_rewrite(address, rewrite, options)?)
}

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

    // Without a request, which would be repeated for some 10 seconds.
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
