//! [`replace`]: an output file that takes its place complete, or not at all.

use std::io::{BufWriter, IntoInnerError};
use std::path::Path;

use anyhow::Context;
use safetensors_core::{AtomicFile, Error};

use crate::text;

/// Has `write` write a file, and gives it its name when it is complete and has reached the disk. After an error the path has what
/// it had before. What is there and is no regular file, such as a FIFO or a device, is refused.
///
/// An error that says nothing of a file is about this one.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(AtomicFile::create(path)?);
    let flushed = write(&mut out).and_then(|()| Ok(out.into_inner().map_err(IntoInnerError::into_error)?));
    let names_a_file = |error: &anyhow::Error| error.downcast_ref().and_then(Error::file).is_some();
    match flushed {
        Ok(file) => Ok(file.commit()?),
        Err(error) if names_a_file(&error) => Err(error),
        Err(error) => Err(error).with_context(|| text::path(path)),
    }
}
