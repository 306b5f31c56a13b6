//! Directories that a save makes, and takes away again if it comes to nothing: [`NewDirectories`]
//! and [`TempDirectory`].

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The directories that were made so that another one is there. They are removed when this is
/// dropped, unless something is in them by then.
pub(super) struct NewDirectories {
    /// Each before those that lie in it.
    directories: Vec<PathBuf>,
}

impl NewDirectories {
    /// Makes a directory, and those above it, where they are not there yet.
    pub(super) fn create_all(directory: &Path) -> io::Result<Self> {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<_> = directory.ancestors().take_while(missing).collect();
        let mut made = Self { directories: Vec::new() };
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                Ok(()) => made.directories.push(path.into()),
                // Somebody else was faster: it is theirs.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        // Says so if the path has something else.
        fs::create_dir_all(directory)?;
        Ok(made)
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

/// A hidden directory that is removed with all that is in it when this is dropped.
pub(super) struct TempDirectory(PathBuf);

impl TempDirectory {
    /// Makes one in a directory. An error is the system's, and says nothing of a name that nobody
    /// asked for.
    pub(super) fn create_in(directory: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let made = builder
            .prefix(".")
            .suffix(".safetensors.tmp")
            .make_in(directory, |path| fs::create_dir(path))?;
        Ok(Self(made.into_temp_path().keep()?))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // Should this fail, it can be removed by hand: its name says what it is.
        let _ = fs::remove_dir_all(&self.0);
    }
}
