//! [`NewDirectories`]: directories that a failed save removes again.

use std::path::Path;
use std::{fs, io};

use super::atomic::{directory as parent, sync_directory};
use crate::file::io::names::refuse_impossible;
use crate::file::io::unfinished::{Owned, Steps};

#[derive(Debug, Default)]
pub(crate) struct NewDirectories {
    /// Children before their parents.
    directories: Vec<Owned>,
}

impl NewDirectories {
    pub(crate) fn create_all(directory: &Path) -> io::Result<Self> {
        let mut made = Self::default();
        made.add(directory)?;
        Ok(made)
    }

    pub(crate) fn add(&mut self, directory: &Path) -> io::Result<()> {
        refuse_impossible(directory)?;
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<_> = directory.ancestors().take_while(missing).collect();
        let _steps = Steps::begin();
        for path in missing.into_iter().rev() {
            match fs::create_dir(path) {
                Ok(()) => self.directories.insert(0, Owned::made(path)),
                // Another process has created it in between, so it must not be removed here.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        // This fails if the path leads to something other than a directory.
        fs::create_dir_all(directory)
    }

    /// Waits until the names have reached the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.directories.iter().rev().try_for_each(|made| sync_directory(parent(made.path())))
    }
}
