//! [`replace`] writes an output file completely or not at all. [`advise`] adds a remedy to an error
//! of writing.

use std::io::{self, BufWriter, IntoInnerError};
use std::path::Path;

use anyhow::Context;
use safetensors_core::save::AtomicFile;
use safetensors_core::{Error, ErrorKind, SaveOptions};

use crate::terminal::text;

/// The option of every command that writes an output file.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Force {
    /// Replace what is there even if it is read-only, or in a cache of the Hub
    #[arg(long)]
    force: bool,
}

impl Force {
    /// As the option of this name says.
    pub(crate) fn new(force: bool) -> Self {
        Self { force }
    }

    /// How files are saved.
    pub(crate) fn options(self) -> SaveOptions {
        SaveOptions::new().replace_read_only(self.force).replace_cached(self.force)
    }
}

/// The remedy if the output is not a regular file, for a command that can write to standard output.
pub(crate) const STREAM: &str = "`-o - > FILE` can write to such a file";

/// Writes a file by `write`. The file gets its name once it is complete and on the disk.
///
/// After an error, `path` is as it was before, unless the error says otherwise. Refuses to replace
/// anything but a regular file, such as a FIFO or a device.
///
/// An error that names no file gets this path.
pub(crate) fn replace(
    path: &Path,
    force: Force,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(AtomicFile::create(path, &force.options())?);
    let flushed =
        write(&mut out).and_then(|()| Ok(out.into_inner().map_err(IntoInnerError::into_error)?));
    let names_a_file = |error: &anyhow::Error| error.downcast_ref().and_then(Error::file).is_some();
    match flushed {
        Ok(mut file) => Ok(file.commit()?),
        Err(error) if names_a_file(&error) => Err(error),
        Err(error) => Err(error).with_context(|| text::path(path)),
    }
}

/// Adds a remedy to an error of writing to `path`. Other errors stay as they are.
///
/// `bytes` is the space that the output needs. `other` is the argument that can name another place,
/// such as `OUT`. `stream` is the remedy if `path` is not a regular file.
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
        Some(Failure::InHubCache) => format!("choose another {other}; --force replaces it"),
        Some(Failure::System(io::ErrorKind::NotFound)) => {
            format!("make the directory first, or choose another {other}")
        }
        Some(Failure::System(kind)) if is_full(kind) => {
            format!("{}, or choose another {other}", needed(bytes))
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

/// Whether an error of the system says that there is no space for a file.
pub(crate) fn is_full(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};

    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}

/// The first remedy where there is no space for a file of this many bytes.
pub(crate) fn needed(bytes: u64) -> String {
    format!("{} are needed there: free as much", text::size(bytes))
}

/// Why an output cannot be written.
enum Failure {
    System(io::ErrorKind),
    NoRegularFile,
    ReadOnly,
    InHubCache,
}

/// Why `path`, or a file in it, cannot be written. `None` if the error is about something else,
/// such as an input.
fn failure(error: &anyhow::Error, path: &Path) -> Option<Failure> {
    let Some(known) = error.downcast_ref::<Error>() else {
        let system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        return system.map(|system| Failure::System(system.kind()));
    };
    match known.kind() {
        _ if !known.file().is_some_and(|file| Path::new(file).starts_with(path)) => None,
        ErrorKind::Io(system) => Some(Failure::System(system.kind())),
        ErrorKind::ReadOnlyFile => Some(Failure::ReadOnly),
        ErrorKind::InHubCache => Some(Failure::InHubCache),
        ErrorKind::NotAFile { found: "a special file" } => Some(Failure::NoRegularFile),
        _ => None,
    }
}
