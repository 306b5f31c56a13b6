//! Inputs in messages: their names, and advice about errors.

use std::path::Path;

use safetensors_core::{Error, ErrorKind, edit};

use super::{address, below};
use crate::terminal::report::wrong_usage;
use crate::terminal::text;

pub(super) const STDIN_NAME: &str = "standard input";

pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { STDIN_NAME.into() } else { shown(path) }
}

/// A path or an address, without secrets.
pub(crate) fn shown(path: &Path) -> String {
    match address::in_path(path) {
        Some(address) => text::path(address::shown(address).as_ref()),
        None => text::path(path),
    }
}

/// Refuses `-` for a command that changes a file.
pub(crate) fn refuse_stdin(path: &Path) -> anyhow::Result<()> {
    if is_stdin(path) {
        return Err(wrong_usage("standard input cannot be changed; name the file instead of -"));
    }
    Ok(())
}

/// Adds a remedy for a torn header, and for a directory the number of checkpoints one level down.
pub(crate) fn explain(error: Error) -> anyhow::Error {
    if let ErrorKind::NoCheckpoint { found, .. } = error.kind()
        && found.is_empty()
        && let Some(message) = error.file().map(Path::new).and_then(below::message)
    {
        return anyhow::anyhow!("{message}");
    }
    if !matches!(error.kind(), ErrorKind::TornHeader) {
        return error.into();
    }
    let can_be_restored = error.file().is_some_and(|file| edit::is_torn(file).unwrap_or(false));
    let advice = if can_be_restored {
        "the next change, such as `safetensors metadata set`, restores the header from before it"
    } else {
        "there is no backup of the header next to the file: get the file again"
    };
    anyhow::anyhow!("{error}; {advice}")
}
