//! [`replace`]: an output file that takes its place complete, or not at all; [`advise`]: what to do if it does not.

use std::io::{self, BufWriter, IntoInnerError};
use std::path::Path;

use anyhow::Context;
use safetensors_core::{AtomicFile, Error, ErrorKind, SaveOptions};

use crate::text;

/// What is asked for of an output file, for every command that writes one.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Force {
    /// Replace what is there even if it is read-only
    #[arg(long)]
    force: bool,
}

impl Force {
    /// How files are saved.
    pub(crate) fn options(self) -> SaveOptions {
        SaveOptions::new().replace_read_only(self.force)
    }
}

/// How a command that can write to standard output writes to what is no regular file.
pub(crate) const STREAM: &str = "`-o - > FILE` writes to whatever FILE is";

/// Has `write` write a file, and gives it its name when it is complete and has reached the disk.
/// After an error the path has what it had before, unless the error says otherwise. What is there
/// and is no regular file, such as a FIFO or a device, is refused.
///
/// An error that says nothing of a file is about this one.
pub(crate) fn replace(
    path: &Path,
    force: Force,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(AtomicFile::create_with(path, &force.options())?);
    let flushed =
        write(&mut out).and_then(|()| Ok(out.into_inner().map_err(IntoInnerError::into_error)?));
    let names_a_file = |error: &anyhow::Error| error.downcast_ref().and_then(Error::file).is_some();
    match flushed {
        Ok(file) => Ok(file.commit()?),
        Err(error) if names_a_file(&error) => Err(error),
        Err(error) => Err(error).with_context(|| text::path(path)),
    }
}

/// Adds to an error of writing to `path` what can be done about it: `bytes` are what it needs
/// there, `other` is what names another place, such as `OUT`, and `stream` how to write to what is
/// no regular file. Other errors stay as they are.
pub(crate) fn advise(
    error: anyhow::Error,
    path: &Path,
    bytes: u64,
    other: &str,
    stream: &str,
) -> anyhow::Error {
    let advice = match failure(&error, path) {
        Some(Failure::NoRegularFile) => stream.to_owned(),
        Some(Failure::ReadOnly) => "--force replaces it".to_owned(),
        Some(Failure::System(io::ErrorKind::NotFound)) => {
            format!("make the directory first, or choose another {other}")
        }
        Some(Failure::System(
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge,
        )) => {
            format!(
                "{} are needed there: free as much, or choose another {other}",
                text::size(bytes)
            )
        }
        Some(Failure::System(
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory,
        )) => format!("choose another {other}"),
        _ => return error,
    };
    anyhow::anyhow!("{error:#}; {advice}")
}

/// Why an output cannot be written.
enum Failure {
    System(io::ErrorKind),
    NoRegularFile,
    ReadOnly,
}

/// Why `path`, or a file in it, cannot be written, if the error is about that and not about an
/// input.
fn failure(error: &anyhow::Error, path: &Path) -> Option<Failure> {
    let Some(known) = error.downcast_ref::<Error>() else {
        let system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        return system.map(|system| Failure::System(system.kind()));
    };
    match known.kind() {
        _ if !known.file().is_some_and(|file| Path::new(file).starts_with(path)) => None,
        ErrorKind::Io(system) => Some(Failure::System(system.kind())),
        ErrorKind::ReadOnlyFile => Some(Failure::ReadOnly),
        ErrorKind::NotAFile { found: "a special file" } => Some(Failure::NoRegularFile),
        _ => None,
    }
}
