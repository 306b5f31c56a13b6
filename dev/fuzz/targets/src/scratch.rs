//! A directory for one input, in memory if possible: the engine makes thousands in a second.

use std::path::Path;

use tempfile::TempDir;

/// A new empty directory, which goes with the value.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let directory =
        if memory.is_dir() { TempDir::new_in(memory) } else { Err(std::io::Error::other("none")) };
    directory.or_else(|_| TempDir::new()).unwrap()
}
