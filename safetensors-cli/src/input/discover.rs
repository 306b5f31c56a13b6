//! Finds everything in and below a directory that can be checked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::framework::is_temporary_name;
use safetensors_formats::Format;

use crate::input::kind;

/// Each list is sorted.
#[derive(Debug, Default)]
pub(crate) struct FoundPaths {
    /// Indexes, safetensors files, and directories of PyTorch's trainers or with its
    /// `pytorch_model.bin`, all by name and unopened.
    pub(crate) paths: Vec<PathBuf>,
    /// Files of other formats by their names, except hidden ones.
    pub(crate) others: Vec<PathBuf>,
    /// Directories, and why.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

impl FoundPaths {
    /// Skips the temporary directories of saves.
    // Links to files are followed, because the Hub's cache consists of them, also broken ones.
    // Links to directories may form cycles.
    pub(crate) fn below(directory: &Path) -> Self {
        let mut found = Self::default();
        let mut left = vec![directory.to_owned()];
        while let Some(directory) = left.pop() {
            if let Err(error) = found.look_into(&directory, &mut left) {
                found.unreadable.push((directory, error));
            }
        }
        found.paths.sort_unstable();
        found.others.sort_unstable();
        found.unreadable.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// Searches one directory, and adds its directories to `left`.
    fn look_into(&mut self, directory: &Path, left: &mut Vec<PathBuf>) -> io::Result<()> {
        let (mut names, found) = (Vec::new(), self.paths.len());
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if !is_temporary_name(&entry.file_name()) {
                    left.push(path);
                }
            } else if is_found(&entry.file_name()) && !path.is_dir() {
                self.paths.push(path);
            } else {
                names.extend(entry.file_name().into_string());
            }
        }
        let is_other = || Format::of_directory(names.iter().map(String::as_str)).is_some();
        if self.paths.len() == found && is_other() {
            self.paths.push(directory.to_owned());
        } else {
            let is_other = |name: &&String| !name.starts_with('.') && kind::is_other(name);
            self.others.extend(names.iter().filter(is_other).map(|name| directory.join(name)));
        }
        Ok(())
    }
}

/// Ignores the case of safetensors files' names, as other programs do.
fn is_found(name: &OsStr) -> bool {
    let is_file = |it| matches!(it, CheckpointPath::File(_));
    CheckpointPath::from_name(name.to_ascii_lowercase()).is_some_and(is_file)
        || CheckpointPath::from_name(name).is_some()
}
