//! Mapping a file into memory.
//!
//! # The hazard
//!
//! A mapping is the file, not a copy of it. If any process changes the file while it is mapped, the bytes behind a `&[u8]`
//! change, which Rust forbids; if any process truncates it, touching the lost pages ends this process with `SIGBUS`. No
//! check in this process can rule that out, so mapping is an `unsafe fn`, and the caller promises that it does not happen.
//! Reading at positions ([`FileSource`]) has no such hazard: what changes there is an error or another value, never
//! undefined behaviour.

use std::path::Path;

use memmap2::Mmap;

use crate::source::FileSource;
use crate::{Error, Result};

/// Maps a regular file, read-only and whole.
///
/// # Safety
///
/// The file must not be changed or truncated, by any process, for as long as the mapping lives.
///
/// # Errors
///
/// Those of [`FileSource::open`], and [`ErrorKind::Io`](crate::ErrorKind::Io) if the system refuses the mapping.
pub(crate) unsafe fn map_file(path: &Path) -> Result<Mmap> {
    let source = FileSource::open(path)?;
    // SAFETY: the caller promises that the file stays as it is while the mapping lives.
    let map = unsafe { Mmap::map(source.file()) };
    map.map_err(|error| Error::io(error, path))
}
