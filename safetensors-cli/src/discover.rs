//! From a path to the checkpoints that it leads to: itself, or everything in a directory and below it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::Located;

/// What a directory and those below it hold, each list in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Indexes of shards.
    pub(crate) indexes: Vec<PathBuf>,
    /// Files of tensors; shards among them.
    pub(crate) files: Vec<PathBuf>,
}

impl Found {
    /// Looks through a directory and all below it. Links to files are followed, as the Hub's cache is made of them; links to
    /// directories are not, as they may lead in circles.
    pub(crate) fn below(directory: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        let mut left = vec![directory.to_owned()];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                    continue;
                }
                let is_file = || fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
                match Located::by_name(entry.path()) {
                    Some(Located::Index(path)) if is_file() => found.indexes.push(path),
                    Some(Located::File(path)) if is_file() => found.files.push(path),
                    _ => {}
                }
            }
        }
        found.indexes.sort_unstable();
        found.files.sort_unstable();
        Ok(found)
    }
}
