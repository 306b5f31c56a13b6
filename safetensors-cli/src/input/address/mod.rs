//! Addresses instead of paths, such as `hf://owner/name` and `s3://bucket/model`.
//!
//! `safetensors_hub` reads and writes them. Without the feature `remote`, an address is an error
//! with a remedy.

#[cfg(not(feature = "remote"))]
mod absent;
#[cfg(feature = "remote")]
mod remote;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(not(feature = "remote"))]
pub(crate) use absent::{abort_uploads, advise as explain, missing, save, save_sharded};
#[cfg(feature = "remote")]
pub(crate) use remote::{abort_uploads, advise as explain, save, save_sharded};

use clap::builder::{PathBufValueParser, TypedValueParser};
use safetensors_core::{self as core, Error, ErrorKind, Limits};

use crate::input::source::Checkpoint;
use crate::terminal::report::wrong_usage;

#[cfg(not(feature = "remote"))]
use absent as there;
#[cfg(feature = "remote")]
use remote as there;

/// `file:///path` becomes a path.
pub(crate) fn parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(there::on_disk)
}

/// Returns `None` for a path of the disk. A text that begins like an address of an unknown kind is
/// one, unless it is on the disk.
pub(crate) fn in_path(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_scheme && (there::is_known(text) || !path.exists())).then_some(text)
}

/// Fetches headers now, and tensors when they are read.
pub(crate) fn open(address: &str) -> anyhow::Result<Checkpoint> {
    open_or(address, |_, _, error| Err(error.into()))
}

/// Like [`open`], but `otherwise` opens other formats.
pub(crate) fn open_or(
    address: &str,
    otherwise: impl FnOnce(Arc<there::Files>, &Path, Error) -> anyhow::Result<Checkpoint>,
) -> anyhow::Result<Checkpoint> {
    let (store, path) = files(address)?;
    match core::Checkpoint::open_in(Arc::clone(&store), &path, &Limits::default()) {
        Ok(checkpoint) => Ok(checkpoint.into_boxed()),
        Err(error) if is_of_access(&error) => Err(explain(error, address)),
        Err(error) => otherwise(store, &path, error),
    }
}

/// Returns `true` if nothing was read, or there are several files.
fn is_of_access(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NoCheckpoint { found, .. } => !found.is_empty(),
        kind => matches!(kind, ErrorKind::Io(_) | ErrorKind::Other(_)),
    }
}

/// Returns the store, and the path in it.
fn files(address: &str) -> anyhow::Result<(Arc<there::Files>, PathBuf)> {
    refuse_memory(address)?;
    let (store, path) = there::files(address)?;
    Ok((Arc::new(store), path))
}

/// Returns a store with directories to list, and the path in it.
pub(crate) fn store(address: &str) -> anyhow::Result<(Arc<there::Files>, PathBuf)> {
    if is_web(address) {
        return Err(wrong_usage(format!(
            "{}: a web server does not list what is in a directory; expected a path, or a bucket \
             such as s3://bucket/model",
            printable(address)
        )));
    }
    files(address)
}

pub(crate) fn is_web(address: &str) -> bool {
    let scheme = address.split(':').next().unwrap_or_default();
    ["http", "https"].iter().any(|web| scheme.eq_ignore_ascii_case(web))
}

/// Files with parts of tensors, each as a separate checkpoint.
pub(crate) fn parts(address: &str) -> anyhow::Result<Vec<Checkpoint>> {
    let (store, path) = files(address)?;
    let opened = core::Checkpoint::open_in(store, path, &Limits::default());
    let parts = opened.map_err(|error| explain(error, address))?.into_parts()?;
    Ok(parts.into_iter().map(core::Checkpoint::into_boxed).collect())
}

pub(crate) fn find(address: &str) -> anyhow::Result<Option<Checkpoint>> {
    let (store, path) = files(address)?;
    match core::Checkpoint::open_in(store, path, &Limits::default()) {
        Ok(checkpoint) => Ok(Some(checkpoint.into_boxed())),
        Err(error) => match error.kind() {
            ErrorKind::NoCheckpoint { .. } => Ok(None),
            ErrorKind::Io(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Err(explain(error, address)),
        },
    }
}

/// Refuses an address that cannot be saved to, before anything is read.
pub(crate) fn check_writable(address: &str) -> anyhow::Result<()> {
    refuse_memory(address).map_err(wrong_usage)?;
    there::check_writable(address)
}

/// Refuses the memory of this process, which is lost at the end of the command.
fn refuse_memory(address: &str) -> anyhow::Result<()> {
    match address.split_once(':') {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("memory") => anyhow::bail!(
            "{}: memory:// is empty when a command starts and lost when it ends; name a path, \
             or a bucket such as s3://bucket/model",
            printable(address)
        ),
        _ => Ok(()),
    }
}

/// Removes user, password and query, which may be credentials.
pub(crate) fn shown(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Refuses an address for a command that changes a file.
pub(crate) fn refuse(path: &Path) -> anyhow::Result<()> {
    let Some(address) = in_path(path) else { return Ok(()) };
    Err(wrong_usage(format!(
        "{}: only files on the disk can be changed; `safetensors convert` copies this one there",
        printable(address)
    )))
}

fn printable(address: &str) -> String {
    crate::terminal::text::printable(&shown(address)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_distinguished() {
        for address in ["hf://owner/name", "s3://bucket", "https://host/a?b=c", "ftp://host/a"] {
            assert_eq!(in_path(Path::new(address)), Some(address));
        }
        for path in ["-", "a/b.safetensors", "C:\\a", "C://a", "://a", "a b://c", "./s3://a"] {
            assert_eq!(in_path(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn secrets_in_addresses_are_not_shown() {
        for (address, expected) in [
            ("hf://owner/name@v1/a", "hf://owner/name@v1/a"),
            ("https://u:p@host/a@b?X-Signature=c#d", "https://host/a@b"),
            ("s3://bucket", "s3://bucket"),
        ] {
            assert_eq!(shown(address), expected);
        }
    }
}
