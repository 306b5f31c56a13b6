//! From the path that a user gives to the file or index that is meant.

use std::fs;
use std::path::{Path, PathBuf};

use super::pattern::is_shard_of_several;
use crate::error::{Error, ErrorKind, Result};

/// How the name of an index file ends.
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// How the name of a file of tensors ends.
pub(super) const FILE_SUFFIX: &str = ".safetensors";

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// One file of tensors.
    File(PathBuf),
    /// The index of several.
    Index(PathBuf),
}

impl Located {
    /// What a file in a directory is by the end of its name: `.safetensors.index.json` an index,
    /// `.safetensors` a file of tensors, everything else nothing. The file is not looked at.
    ///
    /// ```
    /// use safetensors_core::Located;
    ///
    /// let path = "checkpoint/model.safetensors.index.json";
    /// assert_eq!(Located::by_name(path), Some(Located::Index(path.into())));
    /// assert_eq!(Located::by_name("checkpoint/config.json"), None);
    /// ```
    pub fn by_name(path: impl AsRef<Path>) -> Option<Self> {
        let path = path.as_ref();
        let name = path.file_name()?.to_string_lossy();
        if name.ends_with(INDEX_SUFFIX) {
            return Some(Self::Index(path.into()));
        }
        name.ends_with(FILE_SUFFIX).then(|| Self::File(path.into()))
    }
}

/// A file is itself; a `*.json` file is an index; a directory holds one index or one
/// `*.safetensors` file.
///
/// In a directory with several indexes, `model.safetensors.index.json` is the one: it is what the
/// Hub's libraries load. One file that is a shard of several, by its name, is no checkpoint: the
/// others and the index are missing.
pub(super) fn locate(path: &Path) -> Result<Located> {
    let metadata = fs::metadata(path).map_err(|error| Error::io(error, path))?;
    if !metadata.is_dir() {
        let is_index = path.extension().is_some_and(|extension| extension == "json");
        return Ok(if is_index { Located::Index(path.into()) } else { Located::File(path.into()) });
    }
    let names = list(path)?;
    let standard = format!("model{INDEX_SUFFIX}");
    let indexes: Vec<_> = names.iter().filter(|name| name.ends_with(INDEX_SUFFIX)).collect();
    let files: Vec<_> = names.iter().filter(|name| name.ends_with(FILE_SUFFIX)).collect();
    match (indexes.as_slice(), files.as_slice()) {
        ([index], _) => Ok(Located::Index(path.join(index))),
        (several, _) if several.contains(&&standard) => Ok(Located::Index(path.join(standard))),
        ([], [file]) if !is_shard_of_several(file) => Ok(Located::File(path.join(file))),
        _ => {
            let found = indexes.into_iter().chain(files).cloned().collect();
            Err(Error::from(ErrorKind::NoCheckpoint { found }).in_path(path))
        }
    }
}

/// The names in a directory that are text, sorted.
pub(super) fn list(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| Error::io(error, directory))? {
        let entry = entry.map_err(|error| Error::io(error, directory))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
