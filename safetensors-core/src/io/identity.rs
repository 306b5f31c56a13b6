//! [`Identity`]: which file a name leads to.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Which file it is, among those that a system has at one time.
///
/// Two names of one file have the same identity, and a file keeps it when it is renamed. A file
/// that is gone may leave its identity to a new one: hold it open, or compare its times as well,
/// where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    inode: u64,
    /// Other systems do not tell which file it is. When it was made comes near.
    #[cfg(not(unix))]
    created: Option<std::time::SystemTime>,
}

impl Identity {
    /// The identity of the file that has this metadata.
    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The identity of the file that has this metadata.
    #[cfg(not(unix))]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { created: metadata.created().ok() }
    }

    /// The identity of what has a name, which may be a link; `None` if nothing has it.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
