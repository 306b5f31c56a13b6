//! [`NewDirectories`]: directories that a save makes, and takes away again if it comes to nothing.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::io::unfinished::{Registered, Steps};
use crate::save::atomic::{directory as parent, sync_directory};
pub(super) use crate::save::temporary::TempDirectory;

/// The directories that were made so that another one is there. They are removed when this is
/// dropped, unless something is in them by then.
pub(super) struct NewDirectories {
    /// Each before those that lie in it.
    directories: Vec<PathBuf>,
    registered: Vec<Registered>,
}

impl NewDirectories {
    /// Makes a directory, and those above it, where they are not there yet.
    pub(super) fn create_all(directory: &Path) -> io::Result<Self> {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<_> = directory.ancestors().take_while(missing).collect();
        let mut made = Self { directories: Vec::new(), registered: Vec::new() };
        let _steps = Steps::begin();
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                Ok(()) => {
                    made.directories.push(path.into());
                    made.registered.push(Registered::made(path));
                }
                // Somebody else was faster: it is theirs.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        // Says so if the path has something else.
        fs::create_dir_all(directory)?;
        Ok(made)
    }

    /// Waits until the names of the directories that were made have reached the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.directories.iter().try_for_each(|made| sync_directory(parent(made)))
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        for directory in self.directories.iter().rev() {
            // This fails for those that are not empty.
            let _ = fs::remove_dir(directory);
        }
    }
}
