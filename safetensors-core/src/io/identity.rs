//! [`Identity`]: which file a name leads to.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// The identity of a file among all that exist at one time.
///
/// All hard links of a file have the same identity, and a file keeps it when it is renamed. A new
/// file may get the identity of a removed one. Where that matters, hold the file open, or compare
/// its times as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    inode: u64,
    /// Other systems have no such numbers. The time of creation comes close.
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

    /// The identity of the file at a path, or of the link itself if it is one; `None` if nothing is
    /// there.
    pub(crate) fn at(path: &Path) -> io::Result<Option<Self>> {
        match fs::symlink_metadata(path) {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
