//! [`replace`] writes an output file completely or not at all.

use std::fmt::Display;
use std::io::{self, BufWriter, IntoInnerError, Write};
use std::path::Path;

use anyhow::Context;
use safetensors_core::save::AtomicFile;
use safetensors_core::{Error, ErrorKind, SaveOptions};

use crate::terminal::text;

/// Names an output in remedies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument {
    /// The argument that can name another place, such as `OUT`.
    pub(crate) name: &'static str,
    /// The remedy if the output is not a regular file.
    pub(crate) stream: &'static str,
}

/// The argument of a command that can write to standard output.
pub(crate) const OUTPUT: Argument =
    Argument { name: "-o FILE", stream: "`-o - > FILE` can write to such a file" };

/// The file gets its name once it is complete and on the disk. Errors name it, and leave it
/// unchanged unless they say otherwise. Refuses to replace anything but a regular file.
pub(crate) fn replace(
    path: &Path,
    options: &SaveOptions,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(AtomicFile::create(path, options)?);
    let flushed =
        write(&mut out).and_then(|()| Ok(out.into_inner().map_err(IntoInnerError::into_error)?));
    match flushed {
        Ok(mut file) => Ok(file.commit()?),
        Err(error) if error.downcast_ref().and_then(Error::file).is_some() => Err(error),
        Err(error) => Err(error).with_context(|| text::path(path)),
    }
}

/// Prints that a file or directory is written. If that fails, so does the command, with an error
/// that says that it is written.
pub(crate) fn tell(
    out: &mut impl Write,
    path: &str,
    done: &str,
    content: impl Display,
) -> anyhow::Result<()> {
    let told = writeln!(out, "{path}: {content}").and_then(|()| out.flush());
    printed(told, path, done)
}

/// Adds to an error that the output is in its place.
pub(crate) fn printed(told: io::Result<()>, path: &str, done: &str) -> anyhow::Result<()> {
    told.with_context(|| format!("{path} is {done}, but this could not be printed"))
}

/// Adds a remedy to an error of writing, which needs `bytes`. Other errors are unchanged.
pub(crate) fn advise(
    error: anyhow::Error,
    path: &Path,
    bytes: u64,
    argument: Argument,
) -> anyhow::Error {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};

    let Argument { name: other, stream } = argument;
    let known = error.downcast_ref::<Error>();
    // It may be about an input.
    if known.is_some_and(|it| it.file().is_none_or(|file| !Path::new(file).starts_with(path))) {
        return error;
    }
    let system = match known.map(Error::kind) {
        Some(ErrorKind::Io(system)) => Some(system.kind()),
        Some(_) => None,
        None => error.chain().find_map(|it| Some(it.downcast_ref::<io::Error>()?.kind())),
    };
    let advice = match (known.map(Error::kind), system) {
        (Some(ErrorKind::FileExists), _) => {
            let path = text::path(path);
            return anyhow::anyhow!("{path} appeared while this command ran; --force replaces it");
        }
        (Some(ErrorKind::NotAFile { found: "a special file" }), _) => stream.to_owned(),
        (Some(ErrorKind::ReadOnlyFile), _) => "--force replaces it".to_owned(),
        (Some(ErrorKind::InHubCache), _) => format!("choose another {other}; --force replaces it"),
        (_, Some(NotFound)) => format!("make the directory first, or choose another {other}"),
        (_, Some(kind)) if is_full(kind) => {
            format!("{}, or choose another {other}", needed(kind, bytes))
        }
        (_, Some(PermissionDenied | ReadOnlyFilesystem | NotADirectory)) => {
            format!("choose another {other}")
        }
        _ => return error,
    };
    anyhow::anyhow!("{error:#}; {advice}")
}

/// Returns `true` if there is no space for a file.
pub(crate) fn is_full(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};

    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
}

/// Returns the first remedy for missing space.
pub(crate) fn needed(kind: io::ErrorKind, bytes: u64) -> String {
    let remedy = match kind {
        io::ErrorKind::FileTooLarge => "raise the limit of file sizes (`ulimit -f`)",
        _ => "free as much",
    };
    format!("{} are needed there: {remedy}", text::size(bytes))
}
