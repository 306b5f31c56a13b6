//! Finds everything in a directory and below it that can be checked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::framework::is_temporary_name;
use safetensors_formats::Format;

use crate::input::kind;

/// The paths found in a directory and below it, each list sorted.
#[derive(Debug, Default)]
pub(crate) struct FoundPaths {
    /// Indexes and safetensors files, including shards, and directories of PyTorch's trainers or
    /// with its `pytorch_model.bin`, recognized by name. None has been opened.
    pub(crate) paths: Vec<PathBuf>,
    /// Files of other formats by their names, which are none of these and not hidden.
    pub(crate) others: Vec<PathBuf>,
    /// Directories that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

impl FoundPaths {
    /// Searches a directory and all below it.
    ///
    /// Links to files are followed, because the Hub's cache consists of them. A broken link is
    /// found too. Links to directories are not followed, because they may form cycles. The
    /// temporary directories of saves are skipped, because their content is not complete.
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

    /// Searches one directory. Adds the directories in it to `left`.
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

/// Returns `true` if a name belongs to an index or to a safetensors file, the latter in upper or
/// lower case because other programs read it so.
fn is_found(name: &OsStr) -> bool {
    let is_file = |it| matches!(it, CheckpointPath::File(_));
    CheckpointPath::from_name(name.to_ascii_lowercase()).is_some_and(is_file)
        || CheckpointPath::from_name(name).is_some()
}
