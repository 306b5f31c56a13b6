//! From a path to the checkpoints that it leads to: itself, or everything in a directory and below it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How the names of indexes and of tensor files end.
const INDEX: &str = ".safetensors.index.json";
const FILE: &str = ".safetensors";

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
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_file = || fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
                if name.ends_with(INDEX) && is_file() {
                    found.indexes.push(entry.path());
                } else if name.ends_with(FILE) && is_file() {
                    found.files.push(entry.path());
                }
            }
        }
        found.indexes.sort_unstable();
        found.files.sort_unstable();
        Ok(found)
    }
}

/// The files of tensors in an index's own directory that are none of its shards.
pub(crate) fn strays(index: &Path, shards: &BTreeSet<&Path>) -> io::Result<Vec<PathBuf>> {
    let folder = match index.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut strays = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let path = index.with_file_name(&name);
        if name.to_string_lossy().ends_with(FILE) && !shards.contains(path.as_path()) {
            strays.push(path);
        }
    }
    strays.sort_unstable();
    Ok(strays)
}
