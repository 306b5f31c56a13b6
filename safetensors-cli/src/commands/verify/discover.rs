//! From a directory to everything in it and below it that can be checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::Located;

/// What a directory and those below it hold, each list in order.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Indexes of shards, and files of tensors, shards among them: by their names. None has been
    /// looked at.
    pub(crate) paths: Vec<PathBuf>,
    /// Directories that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

impl Found {
    /// Looks through a directory and all below it. Links to files are followed, as the Hub's cache
    /// is made of them, and one that leads nowhere is found too; links to directories are not
    /// followed, as they may lead in circles.
    pub(crate) fn below(directory: &Path) -> Self {
        let mut found = Self::default();
        let mut left = vec![directory.to_owned()];
        while let Some(directory) = left.pop() {
            if let Err(error) = found.look_into(&directory, &mut left) {
                found.unreadable.push((directory, error));
            }
        }
        found.paths.sort_unstable();
        found.unreadable.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// Looks at what one directory has; `left` is where the directories in it go.
    fn look_into(&mut self, directory: &Path, left: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                left.push(path);
            } else if Located::by_name(&path).is_some() && !path.is_dir() {
                self.paths.push(path);
            }
        }
        Ok(())
    }
}
